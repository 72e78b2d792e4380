"""Damaged and hostile files: each is refused in one paragraph, or does without what is damaged and says so.

No file runs code, none ends in a traceback. The files are made from real runs and by real writers.
"""

import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet as pq
import pytest
import torch
import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

from fedlit import TensorData
from fedlit.cli.main import main
from fedlit.data.files.cifar import read_cifar10
from fedlit.data.files.femnist import read_femnist
from fedlit.data.files.folders import read_folders
from fedlit.data.files.mnist import read_mnist
from fedlit.data.files.office import DOMAINS, read_office
from fedlit.errors import DataError
from tests.conftest import TINY, Call, files

RESUME = f"fit {TINY} --trainer.rounds 5 --resume"
LAST, PREVIOUS = Path("run/checkpoints/last.ckpt"), Path("run/checkpoints/previous.ckpt")
CONFIG, METRICS, RECORDS = Path("run/config.yaml"), Path("run/metrics.csv"), Path("run/clients.parquet")
HTML = "<script>alert(1)</script>"
PROOF = "it-ran"

Damage = Callable[[], object]


class Evil:
    """What runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {PROOF}",)


BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{level}: &a{level} [{','.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 10)
)
TAG = f"model: !!python/object/apply:os.system ['touch {PROOF}']\n"


def ran() -> bool:
    """Whether code of a file did, wherever the process was then."""
    return any(Path().rglob(PROOF))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three rounds."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    with pytest.raises(SystemExit):
        main(f"fit {TINY} --run {folder} --wandb disabled".split())
    return folder


@pytest.fixture
def run(finished: Path, workplace: Path) -> Path:
    """A copy of it in the working folder."""
    shutil.copytree(finished, "run")
    return Path("run")


def replaced(path: Path, by: bytes | str) -> Damage:
    content = by if isinstance(by, bytes) else by.encode()
    return lambda: path.write_bytes(content)


def folder_for(path: Path) -> Damage:
    def change() -> None:
        path.unlink()
        path.mkdir()

    return change


def edited(change: Callable[[dict[str, Any]], object]) -> Damage:
    """Both checkpoints with another content."""

    def edit() -> None:
        for path in (LAST, PREVIOUS):
            content = torch.load(path, weights_only=True)
            change(content)
            torch.save(content, path)

    return edit


def loop_edited(change: Callable[[dict[str, Any]], object]) -> Damage:
    return edited(lambda content: change(content["loops"]["fit_loop"]))


def both(content: Callable[[], bytes]) -> Damage:
    return lambda: [path.write_bytes(content()) for path in (LAST, PREVIOUS)]


def archive_of(entries: dict[str, bytes], kind: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", kind) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return out.getvalue()


def saved(content: Any) -> bytes:
    out = io.BytesIO()
    torch.save(content, out)
    return out.getvalue()


# config.yaml of a run


@pytest.mark.parametrize("words", [RESUME, "evaluate run"], ids=["resume", "evaluate"])
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (replaced(CONFIG, b"model: \xff"), "is not text"),
        (folder_for(CONFIG), "cannot be read"),
        (CONFIG.unlink, "cannot be read"),
        (replaced(CONFIG, "trainer: [1]"), "has '[1]' as trainer"),
        (replaced(CONFIG, BOMB), "aliases (*) repeat more than"),
        (replaced(CONFIG, "model: " + "[" * 3000), "more than 100 levels"),
        (replaced(CONFIG, TAG), "is not YAML"),
    ],
    ids=["not text", "folder", "gone", "list", "bomb", "deep", "tag"],
)
def test_a_damaged_config_of_a_run_is_refused(
    run: Path, refusal: Callable[..., str], words: str, damage: Damage, said: str
) -> None:
    damage()
    message = refusal(words)
    assert str(CONFIG) in message
    assert said in message
    assert not ran()


# YAML that a user gives


@pytest.mark.parametrize("words", ["fit --config {}", "sweep {}", "reproduce {}", f"fit {TINY} --model {{}}"])
@pytest.mark.parametrize("content", [BOMB, "a: &a [*a]", "a: " + "[" * 3000], ids=["bomb", "itself", "deep"])
def test_yaml_that_is_larger_than_it_looks_is_refused(
    workplace: Path, refusal: Callable[..., str], words: str, content: str
) -> None:
    Path("mine.yaml").write_text(content)
    assert "No setting needs that" in refusal(words.format("mine.yaml"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("class_path: FedBC", "class_path: FedBCC", "c.yaml: model names the class 'FedBCC', which does not exist"),
        ("class_path: FedBC", "class_path: os.system", "model names 'os.system', which is not a Client"),
        ("class_path: fedlit.Softmax", "class_path: os.system", "model.net names 'os.system', which is not a Module"),
        ("num_features: 60", f"num_features: {'9' * 5000}", "c.yaml cannot be read"),
        ("num_features: 60", "num_features: !!python/name:os.system", "c.yaml, line"),
    ],
    ids=["unknown class", "function", "function as net", "long number", "tag"],
)
def test_a_config_in_another_folder_is_refused_for_what_is_wrong(
    workplace: Path, refusal: Callable[..., str], old: str, new: str, said: str
) -> None:
    Path("mine").mkdir()
    shipped = Path(__file__).parents[2] / "configs" / "synthetic_fedbc.yaml"
    Path("mine/c.yaml").write_text(shipped.read_text().replace(old, new, 1))
    assert said in refusal("fit --config mine/c.yaml --run new")


# checkpoints


@pytest.mark.parametrize("words", [RESUME, "export run", "evaluate run"], ids=["resume", "export", "evaluate"])
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (both(lambda: saved({"a": torch.zeros(3)})), "state_dict is missing"),
        (both(lambda: saved(torch.zeros(3))), "damaged, or not fedlit's"),
        (both(lambda: pickle.dumps(Evil())), "damaged, or not fedlit's"),
        (both(lambda: archive_of({"a/data.pkl": pickle.dumps(Evil(), 2), "a/version": b"3"})), "damaged, or not"),
        (both(lambda: archive_of({"a/data.pkl": bytes(10**7)}, zipfile.ZIP_DEFLATED)), "damaged, or not fedlit's"),
        (edited(lambda content: content.update(loops=[1])), "loops is '[1]'"),
        (edited(lambda content: content.update(loops={})), "loops.fit_loop is missing"),
        (edited(lambda content: content["state_dict"]["net.linear.bias"].fill_(torch.nan)), "NaN"),
        (loop_edited(lambda loop: loop.update(rounds="three")), "rounds is 'three'"),
        (loop_edited(lambda loop: loop.update(rounds=1)), "does not end with round 1"),
        (loop_edited(lambda loop: loop.pop("clients")), "clients is missing"),
        (loop_edited(lambda loop: loop["clients"].update(rows={"dual": torch.zeros(1)})), "not one row of dual"),
        (loop_edited(lambda loop: loop["history"].update(values=torch.zeros(1, 1))), "values has the shape"),
        (loop_edited(lambda loop: loop.update(engine={"choice": 1})), "engine.choice is '1'"),
    ],
)
def test_a_file_that_is_not_a_checkpoint_of_fedlit_is_refused(
    run: Path, refusal: Callable[..., str], words: str, damage: Damage, said: str
) -> None:
    damage()
    assert said in refusal(words)
    assert not ran()


def strangers(loop: dict[str, Any]) -> None:
    loop["clients"]["clients"] = [10**6 + client for client in loop["clients"]["clients"]]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (loop_edited(lambda loop: loop.update(federation={})), "cannot be understood"),
        (loop_edited(strangers), "row of client"),
        (edited(lambda content: content["state_dict"].update({"net.linear.bias": torch.zeros(2)})), "has the shape"),
    ],
    ids=["no server", "unknown clients", "another net"],
)
def test_a_checkpoint_of_another_run_is_refused(run: Path, call: Call, damage: Damage, said: str) -> None:
    damage()
    answer = call(RESUME)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert said in answer.err


def test_rows_on_disk_beyond_the_end_of_their_file_are_refused(workplace: Path, call: Call) -> None:
    assert call(f"fit {TINY} --trainer.states disk").code == 0

    def far_away(loop: dict[str, Any]) -> None:
        loop["clients"]["stored"]["slots"] += 10**12

    loop_edited(far_away)()
    answer = call(f"{RESUME} --trainer.states disk")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "is not in it" in answer.err


# results of runs


def metrics_with(old: str, new: str) -> Damage:
    return lambda: METRICS.write_text(METRICS.read_text().replace(old, new, 1))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (replaced(METRICS, b"\xff\x00\n"), "the header does not start with 'round'"),
        (folder_for(METRICS), "does not exist"),
        (metrics_with("\n2,", "\nnan,"), "line 4"),
        (metrics_with("\n2,", "\n2.5,"), "line 4"),
        (metrics_with("\n2,", "\n" + "9" * 400 + ","), "line 4"),
        (metrics_with("\n2,", "\n1,"), "round 1 comes after round 1"),
        (metrics_with("val/loss", "val/acc"), "a column stands twice"),
        (replaced(Path("run/summary.json"), "[1]"), "summary.json holds no keys"),
        (replaced(Path("run/summary.json"), "[" * 100_000), "summary.json cannot be read"),
        (folder_for(Path("run/summary.json")), "summary.json cannot be read"),
        (replaced(Path("run/partition.json"), '{"hash": [1]}'), "has a hash that is not a text"),
        (lambda: CONFIG.write_text(CONFIG.read_text().replace("seed_everything: 0", "seed_everything: many")), "seed"),
    ],
)
@pytest.mark.parametrize("words", ["report run --out out", "dashboard run --out out.html"], ids=["report", "dashboard"])
def test_damaged_results_are_refused(
    run: Path, refusal: Callable[..., str], words: str, damage: Damage, said: str
) -> None:
    damage()
    assert said in refusal(words)


@pytest.mark.parametrize(
    "damage",
    [
        folder_for(RECORDS),
        replaced(RECORDS, "hello"),
        lambda: RECORDS.write_bytes(RECORDS.read_bytes()[:200]),
        lambda: pq.write_table(pyarrow.table({"a": [1]}), RECORDS),
        lambda: pq.write_table(pyarrow.table({"round": ["x"], "client": ["y"], "group": ["z"]}), RECORDS),
    ],
    ids=["folder", "text", "truncated", "other columns", "text columns"],
)
@pytest.mark.usefixtures("figures_are_not_drawn")
def test_a_report_does_without_damaged_client_records_and_says_so(run: Path, call: Call, damage: Damage) -> None:
    damage()
    answer = call("report run --out out --metric val/acc")
    assert answer.code == 0
    assert "Client records are missing or damaged" in answer.out


@pytest.mark.usefixtures("figures_are_not_drawn")
def test_a_report_does_without_columns_of_client_records_that_are_not_there(run: Path, call: Call) -> None:
    pq.write_table(pyarrow.table({"round": [1], "client": [0], "group": ["a"]}), RECORDS)
    assert call("report run --out out --metric val/acc").code == 0


def test_names_with_html_are_only_text_in_a_dashboard(run: Path, call: Call) -> None:
    config = yaml.safe_load(CONFIG.read_text())
    config["model"]["class_path"] = f"mine.{HTML}"
    config["model"]["init_args"]["lr"] = HTML
    CONFIG.write_text(yaml.safe_dump(config))
    metrics_with("val/acc", f"val/{HTML}")()
    summary = json.loads(Path("run/summary.json").read_text())
    Path("run/summary.json").write_text(
        json.dumps(summary | {"algorithm": HTML, "why": HTML, "versions": {HTML: HTML}})
    )
    assert call("dashboard run --out out.html").code == 0
    assert HTML not in Path("out.html").read_text()


# what imports a config's module


@pytest.fixture
def evil_module(run: Path) -> None:
    """A run whose config names classes of a module that writes a file when it is imported."""
    Path("evil.py").write_text(f"open('{PROOF}', 'w')\nclass Any: pass\n")
    config = yaml.safe_load(CONFIG.read_text())
    for part in (config["model"], config["data"], config["model"]["init_args"]["net"]):
        part["class_path"] = "evil.Any"
    CONFIG.write_text(yaml.safe_dump(config))


@pytest.mark.parametrize(
    "words", ["report run --out out --metric val/acc", "dashboard run --out out.html", "export run"]
)
@pytest.mark.usefixtures("evil_module", "figures_are_not_drawn")
def test_looking_at_a_run_imports_nothing_that_its_config_names(call: Call, words: str) -> None:
    assert call(words).code == 0
    assert not ran()


@pytest.mark.usefixtures("evil_module")
def test_evaluating_a_run_builds_what_its_config_names(call: Call) -> None:
    assert call("evaluate run").code == 2
    assert ran()


# initial weights


def weights(change: Callable[[torch.Tensor], Any]) -> bytes:
    held = torch.load(LAST, weights_only=True)["state_dict"]
    return saved({name.removeprefix("net."): change(value) for name, value in held.items()})


def flipped() -> bytes:
    content = bytearray(weights(torch.ones_like))
    content[content.index(struct.pack("<2f", 1, 1)) + 2] ^= 1
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (lambda: saved(Evil()), "holds more than tensors"),
        (lambda: pickle.dumps(Evil()), "not an archive"),
        (lambda: saved(torch.nn.Linear(2, 2)), "holds more than tensors"),
        (lambda: weights(torch.ones_like)[:500], "holds no weights"),
        (flipped, "it is damaged"),
        (lambda: archive_of({"a/data.pkl": bytes(10**7)}, zipfile.ZIP_DEFLATED), "it is damaged"),
        (lambda: weights(lambda value: value * torch.nan), "NaN or infinite"),
        (lambda: weights(torch.Tensor.long), "is of int64"),
        (lambda: weights(lambda value: value.to(torch.complex64)), "is of complex64"),
        (lambda: weights(torch.Tensor.to_sparse), "sparse"),
        (lambda: weights(lambda value: value.to("meta")), "without values"),
        (lambda: struct.pack("<Q", 2**62) + b"{}", "not an archive"),
    ],
)
def test_initial_weights_that_are_not_plain_numbers_are_refused(
    run: Path, refusal: Callable[..., str], content: Callable[[], bytes], said: str
) -> None:
    Path("w.pt").write_bytes(content())
    assert said in refusal(f"fit {TINY} --run new --model.init_from.file w.pt")
    assert not ran()


# data


def npy(shape: str, kind: str = "'|u1'", data: bytes = b"") -> bytes:
    """A file of numpy's own format whose header says what it likes."""
    head = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + data


def office(x: Any = None, y: Any = None, raw: bytes | None = None) -> Path:
    """Office-Caltech10 in which one domain's arrays are others."""
    draws = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for domain in DOMAINS:
        arrays[f"{domain}_x"] = draws.integers(0, 5, (30, 800), dtype=np.uint8)
        arrays[f"{domain}_y"] = np.arange(30) % 10
    arrays["amazon_x"] = arrays["amazon_x"] if x is None else x
    arrays["amazon_y"] = arrays["amazon_y"] if y is None else y
    path = Path("office/office_caltech10_surf.npz")
    path.parent.mkdir()
    np.savez(path, **arrays)
    if raw is not None:
        with zipfile.ZipFile(path) as held:
            kept = {name: held.read(name) for name in held.namelist()}
        path.write_bytes(archive_of(kept | {"amazon_x.npy": raw}, zipfile.ZIP_DEFLATED))
    return path


@pytest.mark.parametrize(
    "options",
    [
        {"y": np.array([Evil()] * 30, object)},
        {"y": np.arange(30) / 2},
        {"y": np.arange(30) - 15},
        {"y": np.arange(30)},
        {"y": np.arange(3)},
        {"y": np.array(3)},
        {"y": np.array(["a"] * 30)},
        {"y": np.zeros(30, [("a", "i4")])},
        {"x": np.full((30, 800), np.nan)},
        {"x": np.zeros((0, 800), np.uint8), "y": np.zeros(0, int)},
        {"raw": npy("(4000000000, 800)")},
        {"raw": npy("(4611686018427387904, 800)")},
        {"raw": npy("(-1, 800)", data=bytes(24000))},
        {"raw": npy(f"__import__('os').system('touch {PROOF}')")},
        {"raw": npy("(1,)", "'|O'", pickle.dumps(Evil()))},
        {"raw": npy("(30, 800)", data=bytes(10))},
        {"raw": npy("(400000, 800)", data=bytes(3 * 10**8))},
    ],
    ids=lambda options: " ".join(options),
)
def test_a_hostile_npz_is_refused(workplace: Path, options: dict[str, Any]) -> None:
    office(**options)
    with pytest.raises(DataError, match=r"office_caltech10_surf\.npz cannot be used"):
        read_office(Path())
    assert not ran()


def test_an_npz_with_two_arrays_of_one_name_is_refused(workplace: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(office(), "a") as archive:
        archive.writestr("amazon_y.npy", npy("(30,)", data=bytes(30)))
    with pytest.raises(DataError, match="two of its arrays have the same name"):
        read_office(Path())


def test_a_papers_table_with_nan_is_refused(run: Path, refusal: Callable[..., str]) -> None:
    Path("table.csv").write_text("algorithm,metric,mean,std\nFedBC,val/acc,nan,1\n")
    assert "table.csv, line 2: mean and std must be numbers" in refusal("report run --out out --against table.csv")


@pytest.mark.parametrize("content", [b"", b"hello", pickle.dumps({"a": 1})], ids=["empty", "text", "pickle"])
def test_what_is_not_an_npz_is_refused(workplace: Path, content: bytes) -> None:
    office().write_bytes(content)
    with pytest.raises(DataError, match="cannot be used"):
        read_office(Path())


@pytest.mark.parametrize(
    "content",
    [
        lambda: pickle.dumps(Evil()),
        lambda: pickle.dumps({"data": Evil(), "labels": [1]}),
        lambda: pickle.dumps({"data": np.array([Evil()], object), "labels": [1]}),
        lambda: b"",
        lambda: pickle.dumps([1]),
        lambda: pickle.dumps({"data": np.zeros(3, np.uint8), "labels": [1] * 10_000}),
    ],
    ids=["code", "code inside", "objects", "empty", "list", "another shape"],
)
def test_a_hostile_batch_of_cifar_is_refused_and_runs_nothing(workplace: Path, content: Callable[[], bytes]) -> None:
    Path("cifar-10-batches-py").mkdir()
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        Path("cifar-10-batches-py", name).write_bytes(content())
    with pytest.raises(DataError, match="cannot be used"):
        read_cifar10(Path())
    assert not ran()


@pytest.mark.parametrize(
    "content",
    [b"", b"\0\0\x08\x03\0", b"\0\0\x0d\x03" + bytes(12), b"\0\0\x08\x03" + struct.pack(">III", *[2**32 - 1] * 3)],
    ids=["empty", "half a header", "floats", "lies"],
)
def test_a_hostile_idx_file_is_refused(workplace: Path, content: bytes) -> None:
    Path("MNIST/raw").mkdir(parents=True)
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        Path("MNIST/raw", f"{name}-ubyte").write_bytes(content)
    with pytest.raises(DataError, match="cannot be used"):
        read_mnist(Path())


def leaf(x: Any, y: Any, size: Any = 1) -> bytes:
    return json.dumps({"users": ["a"], "num_samples": [size], "user_data": {"a": {"x": x, "y": y}}}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[" * 100_000,
        b"[1]",
        leaf([[float("nan")] * 784], [1]),
        leaf([[0] * 784], [-1]),
        leaf([[0] * 784], [1.5]),
    ],
    ids=["not JSON", "deep", "list", "nan", "negative", "half a class"],
)
def test_a_hostile_leaf_file_is_refused(workplace: Path, content: bytes) -> None:
    Path("femnist").mkdir()
    Path("femnist/a.json").write_bytes(content)
    with pytest.raises(DataError, match="cannot be used"):
        read_femnist(Path())


def picture(change: Callable[[Path], object]) -> Damage:
    return lambda: change(Path("pictures/a/x/t.png"))


@pytest.mark.parametrize(
    "damage",
    [
        picture(lambda path: path.write_text("hello")),
        picture(lambda path: path.write_bytes(pickle.dumps(Evil()))),
        picture(lambda path: path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")),
        picture(lambda path: path.symlink_to("/etc/passwd")),
        picture(lambda path: path.symlink_to("t.png")),
        picture(lambda path: path.symlink_to("nowhere")),
        picture(Path.mkdir),
        picture(os.mkfifo),
        picture(lambda path: path.symlink_to("/dev/zero")),
    ],
    ids=["text", "pickle", "postscript", "link", "loop", "broken link", "folder", "pipe", "device"],
)
def test_what_is_not_a_picture_is_refused(workplace: Path, damage: Damage) -> None:
    from PIL import Image

    for place in ("a/x", "b/x"):
        Path("pictures", place).mkdir(parents=True)
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(Path("pictures", place, "0.png"))
    damage()
    with pytest.raises(DataError, match=r"t\.png cannot be used"):
        read_folders(Path("pictures"), 8)


X, Y, CLIENT = np.ones((40, 3), "float32"), np.arange(40) % 3, np.arange(40) % 4


@pytest.mark.parametrize(
    "arrays",
    [
        {"x": X * np.nan},
        {"x": X * np.inf},
        {"x": X.astype("float16") * np.float16(np.inf)},
        {"x": X + 1j},
        {"x": X.astype(object)},
        {"x": X > 0},
        {"x": X.astype(np.longdouble)},
        {"x": torch.eye(40, 3).to_sparse()},
        {"x": np.ma.masked_less(X, 2)},
        {"y": Y - 1},
        {"y": Y, "num_classes": 2},
        {"y": np.full(40, 2**64 - 1, np.uint64)},
        {"y": np.full(40, np.nan)},
        {"y": Y == 0},
        {"y": np.array(["a"] * 40)},
        {"client": CLIENT / 2},
        {"client": np.array([None] * 40, object)},
        {"client": np.zeros(40, "M8[s]")},
        {"y": Y[:39]},
    ],
    ids=lambda arrays: "-".join(f"{name} {getattr(value, 'dtype', value)}" for name, value in arrays.items()),
)
def test_arrays_that_are_not_samples_are_refused(arrays: dict[str, Any]) -> None:
    with pytest.raises(DataError):
        TensorData(**{"x": X, "y": Y, "client": CLIENT, **arrays})


def test_nothing_of_a_refused_run_is_left(run: Path, refusal: Callable[..., str]) -> None:
    before = files(run)
    LAST.write_bytes(b"no")
    PREVIOUS.write_bytes(b"no")
    refusal(RESUME)
    assert {name: content for name, content in files(run).items() if "ckpt" not in name} == {
        name: content for name, content in before.items() if "ckpt" not in name
    }
