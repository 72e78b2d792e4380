"""`fedlit data` as a user calls it, and the picture that it saves."""

import errno
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from PIL import Image

from fedlit import Synthetic
from fedlit.cli.data import class_counts, save, shown_clients
from fedlit.data.partition_plot import client_order, draw, draw_partition, partition_figure
from tests.cases import slow_but
from tests.conftest import TINY, Answer, Call, files

Refusal = Callable[..., str]

SMALL = "--config synthetic_fedbc.yaml --data.num_clients 4 --data.size_sigma 0 --data.size_mean 1 --data.size_min 12"
THOUSAND = "--config synthetic_fedbc.yaml --data.num_clients 1000 --data.num_features 4 --data.size_sigma 1"

OWN_DATA = """\
import torch
import fedlit


class Named(fedlit.TensorData):
    def __init__(self, *, fresh: bool = False, seed: int = 0) -> None:
        super().__init__(torch.randn(24, 60), torch.arange(24) % 3, torch.arange(24) // 8, num_classes=3, seed=seed)
        self.is_fresh = fresh

    def build(self) -> tuple[dict[str, torch.Tensor], fedlit.Parts]:
        store, parts = super().build()
        groups = ["[/red]", "a group whose name is longer than a column", ":one:"]
        return store, fedlit.Parts(parts.clients, groups=groups)


class Drawn(fedlit.TensorData):
    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(torch.randn(24, 60), torch.arange(24) % 3, torch.arange(24) // 8, num_classes=3, seed=seed)

    def build(self):
        store, parts = super().build()
        return store | {"y": torch.randint(3, (24,))}, parts  # from the global state, as a user's own data may
"""


def built(**options: Any) -> Synthetic:
    """What SMALL makes."""
    data = Synthetic(num_clients=4, size_sigma=0, size_mean=1, size_min=12, **options)
    data.setup("fit")
    return data


def own_folder() -> Path:
    """The one in which a partition is saved unless --out says otherwise."""
    (folder,) = Path("partition").iterdir()
    return folder


def saved(folder: str | None = None) -> dict[str, Any]:
    content = json.loads(Path(folder or own_folder(), "partition.json").read_text("utf-8"))
    assert isinstance(content, dict)
    return content


def table_rows(answer: Answer) -> list[list[str]]:
    """The words of each row of clients."""
    lines = answer.out.splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("client "))
    return [line.split() for line in lines[start + 1 : -1]]


@pytest.fixture
def own_data(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (workplace / "own_partition.py").write_text(OWN_DATA)
    monkeypatch.syspath_prepend(workplace)


# what is saved


def test_json_is_what_the_data_module_says_of_itself(call: Call, workplace: Path) -> None:
    assert call(f"data {SMALL}").code == 0
    assert saved() == built().describe()
    folder = f"partition/synthetic-{built().partition_hash[:8]}"
    assert set(files(workplace)) == {f"{folder}/partition.json", f"{folder}/partition.png"}


def test_another_partition_has_another_folder(call: Call) -> None:
    for words in ("", "--data.num_clients 5", "--data.seed 1", "--model FedAvg"):
        assert call(f"data {SMALL} {words}").code == 0
    assert len(list(Path("partition").iterdir())) == 3, "the algorithm changes nothing"


def test_json_of_very_many_clients_is_compact_and_says_the_same(tmp_path: Path) -> None:
    few, many = described(10_000, 2), described(10_001, 2)
    texts = [save(one, tmp_path / str(one["num_clients"])).partition.read_text("utf-8") for one in (few, many)]
    assert [json.loads(text) for text in texts] == [few, many]
    assert texts[0].count("\n") > 10_000
    assert texts[1].count("\n") == 1


@pytest.mark.usefixtures("partition_is_drawn")
def test_partition_is_that_of_the_run(call: Call) -> None:
    assert call(f"fit {TINY}").code == 0
    assert call(f"data {TINY} --out seen").code == 0, "a command of fit becomes one of data by one word"
    for name in ("partition.json", "partition.png"):
        assert Path("seen", name).read_bytes() == Path("run", name).read_bytes()


@pytest.mark.usefixtures("own_data")
def test_partition_of_data_that_draw_from_the_global_state_is_that_of_the_run(call: Call) -> None:
    words = f"{TINY} --data own_partition.Drawn --seed_everything 5"
    assert call(f"fit {words}").code == 0
    assert call(f"data {words} --out seen").code == 0
    assert Path("seen/partition.json").read_bytes() == Path("run/partition.json").read_bytes()


@pytest.mark.usefixtures("partition_is_drawn")
def test_picture_is_a_png(call: Call) -> None:
    assert call(f"data {SMALL} --out deep/er").code == 0
    with Image.open("deep/er/partition.png") as picture:
        assert picture.format == "PNG"
        assert picture.width >= 800


def test_older_files_are_replaced_and_others_kept(call: Call) -> None:
    assert call(f"data {SMALL}").code == 0
    folder = own_folder()
    for name in ("partition.json", "partition.png", "notes.txt"):
        (folder / name).write_text("old")
    assert call(f"data {SMALL}").code == 0
    assert saved()["num_clients"] == 4
    assert (folder / "partition.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "notes.txt").read_text() == "old"


@pytest.mark.parametrize("file", ["partition.json", "partition.png"])
def test_a_full_disk_leaves_the_older_files_whole(
    call: Call, refusal: Refusal, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    assert call(f"data {SMALL}").code == 0
    real = os.fsync

    def full(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(f"{file}.tmp"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd)

    monkeypatch.setattr(os, "fsync", full)
    message = refusal(f"data {SMALL}")
    assert re.search(r"partition/\S+ cannot be written \(No space left on device\).*--out DIR", message)
    assert "--resume" not in message


def test_an_interrupt_leaves_no_temporary_file(call: Call, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    assert call(f"data {SMALL}").code == 130
    assert files(workplace) == {}


def test_nothing_but_the_data_is_made_of_a_config(call: Call, workplace: Path) -> None:
    words = "--run run --wandb offline --trainer.logger CSVLogger --trainer.logger.save_dir logs --model.lr 0"
    assert call(f"data {SMALL} {words}").code == 0
    assert [path.name for path in workplace.iterdir()] == ["partition"]


# what is printed


def test_first_line_counts_everything(call: Call) -> None:
    described = built(seed=3).describe()
    train, val, test = (sum(client[part] for client in described["clients"]) for part in ("train", "val", "test"))
    assert call(f"data {SMALL} --data.seed 3").out.splitlines()[0] == (
        f"Synthetic: 4 clients, 10 classes, {train} training, {val} validation and {test} test samples; "
        f"data seed 3, partition {described['hash']}"
    )


def test_a_row_has_the_parts_and_the_classes_of_its_client(call: Call) -> None:
    rows = table_rows(call(f"data {SMALL}"))
    for client, (row, said) in enumerate(zip(rows, built().describe()["clients"], strict=True)):
        held = {label: count for label, count in enumerate(said["classes"]) if count}
        assert row[:5] == [str(client), str(said["train"]), str(said["val"]), str(said["test"]), str(len(held))]
        assert dict(map(int, pair.split(":")) for pair in row[5:]) == held  # type: ignore[arg-type]  # pairs


def test_adaptation_samples_have_a_column_where_there_are_any(call: Call) -> None:
    assert "adapt" not in call(f"data {SMALL}").out
    assert "adapt" in call(f"data {SMALL} --data.adapt_fraction 0.3").out


def test_of_a_thousand_clients_the_ends_are_shown_and_all_are_saved(call: Call) -> None:
    answer = call(f"data {THOUSAND}")
    assert answer.code == 0
    assert "Synthetic: 1,000 clients" in answer.out
    assert "… 980 more …" in answer.out
    rows = table_rows(answer)
    assert len(rows) == 21
    sizes = [client["train"] for client in saved()["clients"]]
    assert len(sizes) == 1000
    shown = [int(row[1].replace(",", "")) for row in rows if row[0] != "…"]
    assert shown == sorted(sizes, reverse=True)[:10] + sorted(sizes, reverse=True)[-10:]
    assert f"{min(sizes):,} to {max(sizes):,}, median {np.median(sizes):,.0f}" in answer.out


def test_forty_clients_are_all_shown_in_the_order_of_their_ids() -> None:
    assert shown_clients(list(range(40))) == list(range(40))
    assert len(shown_clients(list(range(41)))) == 20


@pytest.mark.usefixtures("own_data")
def test_groups_are_shown_as_they_are_written(call: Call) -> None:
    rows = table_rows(call(f"data {SMALL} --data own_partition.Named"))
    assert [row[1] for row in rows] == ["[/red]", "a", ":one:"]


@pytest.mark.usefixtures("own_data")
def test_fresh_clients_are_said_to_be_those_of_the_first_round(call: Call) -> None:
    said = "Clients are drawn anew every round; these are round 1's."
    assert said in call(f"data {SMALL} --data own_partition.Named --data.fresh true").out
    assert said not in call(f"data {SMALL} --data own_partition.Named").out


@pytest.mark.usefixtures("own_data")
def test_no_number_is_cut_on_a_terminal_of_80_columns(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    answer = call(f"data {SMALL} --data own_partition.Named")
    assert "a group whose n…" in answer.out
    assert [row[-1] for row in table_rows(answer)] != []
    assert all(re.fullmatch(r"\d+:\d+|\+\d+", row[-1]) for row in table_rows(answer))
    table = answer.out[answer.out.index("client ") :]
    assert max(map(len, table.splitlines())) <= 80


@pytest.mark.parametrize(
    ("counts", "width", "said"),
    [
        ([0, 5, 120, 0, 45], 40, "2:120 4:45 1:5"),
        ([0, 5, 120, 0, 45], 13, "2:120 4:45 +1"),
        ([0, 5, 120, 0, 45], 12, "2:120 +2"),
        ([0, 5, 120, 0, 45], 3, "+3"),
        ([7, 7], 40, "0:7 1:7"),
        ([0, 0], 40, "none"),
    ],
)
def test_class_counts_go_from_the_most_frequent_on_and_are_never_cut(counts: list[int], width: int, said: str) -> None:
    assert class_counts(counts, width) == said


# options


@pytest.mark.parametrize(
    ("words", "key", "value"), [("--data.num_clients 7", "num_clients", 7), ("--data.seed 9", "seed", 9)]
)
def test_an_override_reaches_the_data(call: Call, words: str, key: str, value: int) -> None:
    assert call(f"data {SMALL} {words}").code == 0
    assert saved()[key] == value


def test_a_config_of_the_working_folder_and_that_of_a_run_are_taken(call: Call) -> None:
    assert call(f"fit {TINY}").code == 0
    assert call("data --config run/config.yaml --out seen").code == 0
    assert saved("seen") == saved("run")


def test_help_lists_the_options_of_fit_and_where_to_save(call: Call) -> None:
    answer = call("data --help")
    assert answer.code == 0
    assert "usage: fedlit data" in answer.out
    for option in ("--config", "--data", "--model", "--trainer.rounds"):
        assert option in answer.out
    assert re.search(r"--out DIR +folder of partition.json and partition.png", answer.out)
    assert "  data    " in call("--help").out


# wrong input: as fit says it


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "Nothing says what to train.*--config"),
        ("--config", "needs a file after it"),
        ("--config nothing.yaml", "no config 'nothing.yaml'.*'fedlit list configs'"),
        ("--config synthetic_fedbv", "Did you mean 'synthetic_fedbc'"),
        ("--config synthetic_fedbc --data.num_client 3", "Did you mean 'data.num_clients'"),
        ("--config synthetic_fedbc --model.lrr 3", "'model.lrr' is not an option"),
        ("--config synthetic_fedbc --trainer.max_epochs 3", "trainer.max_epochs makes no sense"),
        ("--config synthetic_fedbc --data.num_clients 0", "data.num_clients is 0"),
        ("--config synthetic_fedbc --data.num_clients three", "data.num_clients is 'three', but it must be a whole"),
        ("--config synthetic_fedbc --data Sinthetic", "Did you mean 'Synthetic'"),
        ("--config synthetic_fedbc --data.size_sigma 60", "more than fit in memory"),
        ("--config synthetic_fedbc --data fedlit.data.office.OfficeCaltech10 --data.root nowhere", "nowhere/office"),
    ],
)
def test_a_mistake_is_refused_in_the_words_of_fit(refusal: Refusal, words: str, said: str) -> None:
    message = refusal(f"data {words}")
    assert re.search(said, message)
    assert message.replace("fedlit data", "fedlit fit") == refusal(f"fit --wandb disabled {words}")


def test_a_mistake_in_a_config_is_named_with_its_file(refusal: Refusal) -> None:
    Path("mine.yaml").write_text("data:\n  class_path: Synthetic\n  init_args:\n    alfa: 0.5\n")
    message = refusal("data --config synthetic_fedbc --config mine.yaml")
    assert re.search("mine.yaml: 'data.alfa' is not an option. Did you mean 'data.alpha'", message)


@pytest.mark.parametrize("where", ["notes", "notes/deeper"])
def test_a_file_in_the_way_of_the_folder_is_kept(refusal: Refusal, where: str) -> None:
    Path("notes").write_text("mine")
    assert re.search(f"{where} cannot be written.*--out DIR", refusal(f"data {SMALL} --out {where}"))


# the picture


def described(clients: int, classes: int, *, spread: float = 1.0, groups: int = 1) -> dict[str, Any]:
    """A made-up partition: log-normal sizes, few classes in each client."""
    random = np.random.default_rng(0)
    sizes = np.exp(random.normal(5, spread, clients))
    counts = (random.dirichlet(np.full(classes, 0.3), clients) * sizes[:, None]).astype(int).tolist()
    parts = [{"train": sum(own), "val": 0, "test": 0, "classes": own} for own in counts]
    named = [part | {"group": f"group number {k % groups}"} for k, part in enumerate(parts)] if groups > 1 else parts
    whole = {"name": "Made", "seed": 0, "num_clients": clients, "num_classes": classes, "hash": "0123456789abcdef"}
    return whole | {"clients": named}


def drawn(partition: dict[str, Any]) -> Figure:
    figure = partition_figure(partition)
    figure.draw_without_rendering()
    return figure


def tick_labels(axis: Axis) -> list[Any]:
    """Where the labels that can be seen are on the canvas."""
    low, high = sorted(axis.get_view_interval())
    ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [label.get_window_extent() for tick in ticks for label in [tick.label1] if label.get_visible()]


SHAPES = [(1, 2), (4, 10), (20, 10), (60, 12), (61, 13), (138, 80), (100, 200), (1000, 10), (5000, 3)]


SPREADS = [0, 0.5, 3]  # equal sizes, a linear and a logarithmic axis
QUICK = [*((*shape, 3) for shape in SHAPES), *((20, 10, spread) for spread in SPREADS[:2])]


@pytest.mark.parametrize(
    ("clients", "classes", "spread"), slow_but(QUICK, [(*shape, spread) for shape in SHAPES for spread in SPREADS])
)
def test_no_two_tick_labels_overlap_and_none_leaves_the_picture(clients: int, classes: int, spread: float) -> None:
    figure = drawn(described(clients, classes, spread=spread))
    for axes in figure.axes:
        for boxes in (tick_labels(axes.xaxis), tick_labels(axes.yaxis)):
            assert not any(a.overlaps(b) for k, a in enumerate(boxes) for b in boxes[:k])
            assert all(figure.bbox.contains(*box.min) and figure.bbox.contains(*box.max) for box in boxes)


@pytest.mark.parametrize(("clients", "classes"), SHAPES, ids=lambda number: str(number))
def test_class_ticks_are_whole_numbers_of_classes(clients: int, classes: int) -> None:
    axis = drawn(described(clients, classes)).axes[1].yaxis
    ticks = [tick for tick in axis.get_ticklocs() if -0.5 <= tick <= classes - 0.5]
    assert all(tick == round(tick) for tick in ticks)
    assert len(ticks) >= min(classes, 4)
    assert classes > 12 or ticks == list(range(classes))


@pytest.mark.parametrize("clients", [30, 300])
def test_groups_have_a_legend_above_the_bars(clients: int) -> None:
    figure = drawn(described(clients, 10, groups=8))
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [f"group number {k}" for k in range(8)]
    box = legend.get_window_extent()
    assert figure.bbox.contains(*box.min)
    assert figure.bbox.contains(*box.max)
    assert box.y0 >= figure.axes[0].get_window_extent().y1


def test_many_groups_have_no_legend() -> None:
    assert drawn(described(30, 10, groups=9)).axes[0].get_legend() is None


def test_up_to_sixty_clients_go_from_the_largest_to_the_smallest() -> None:
    counts = np.array([[1.0, 0.0], [0.0, 9.0], [0.0, 0.0], [4.0, 0.0]])
    assert client_order(counts).tolist() == [1, 3, 0, 2]


def test_many_clients_go_by_their_main_class_then_by_size_and_empty_ones_last() -> None:
    random = np.random.default_rng(0)
    counts = random.integers(0, 9, (200, 5)).astype(float)
    counts[[0, 77]] = 0
    order = client_order(counts)
    assert sorted(order) == list(range(200))
    assert order[-2:].tolist() == [0, 77]
    keys = [(counts[client].argmax(), -counts[client].sum()) for client in order[:-2]]
    assert keys == sorted(keys)


def test_of_very_many_clients_evenly_spaced_ones_are_drawn() -> None:
    axes = drawn(described(20_000, 4)).axes[1]
    assert axes.images[0].get_array().shape == (4, 2_000)
    assert axes.get_xlabel().endswith("; one in 10 is drawn")
    assert axes.xaxis.get_major_formatter()(1_000, 0) == "10,000"


def test_clients_without_data_are_drawn(tmp_path: Path) -> None:
    partition = described(70, 10)
    partition["clients"] = [client | {"train": 0, "classes": [0] * 10} for client in partition["clients"]]
    draw_partition(partition, tmp_path / "empty.png")
    assert (tmp_path / "empty.png").stat().st_size > 1000


def test_picture_of_a_partition_is_always_the_same(tmp_path: Path) -> None:
    for name in ("one.png", "two.png"):
        draw(described(30, 10), tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


def test_a_picture_is_drawn_once_on_a_machine_and_never_shows_another_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDLIT_CACHE", str(tmp_path / "cache"))
    draw(described(30, 10), tmp_path / "drawn.png")
    draw_partition(described(30, 10), tmp_path / "first.png")
    monkeypatch.setattr("fedlit.data.partition_plot.draw", lambda described, path: path.write_bytes(b"anew"))
    draw_partition(described(30, 10), tmp_path / "second.png")
    first, second = ((tmp_path / f"{name}.png").read_bytes() for name in ("first", "second"))
    assert first == second == (tmp_path / "drawn.png").read_bytes()
    other = described(30, 10)
    other["clients"][7]["classes"][3] += 1
    draw_partition(other, tmp_path / "other.png")
    assert (tmp_path / "other.png").read_bytes() == b"anew"


def test_without_a_cache_a_picture_is_drawn_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDLIT_CACHE", str(tmp_path / "file"))
    draw_partition(described(30, 10), tmp_path / "one.png")
    assert (tmp_path / "one.png").stat().st_size > 1000
