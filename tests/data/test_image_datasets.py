"""Sets of pictures: normalised, augmented, corrupted and drawn anew; on a tiny generated set, and the real ones."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch
from torch import nn

from fedlit import (
    CIFAR10,
    IID,
    MNIST,
    Diversity,
    FashionMNIST,
    FedAvg,
    FedBC,
    FederatedTrainer,
    Fresh,
    Imbalance,
    LabelFlip,
    LeNet,
    PowerLaw,
    Softmax,
)
from fedlit.data.files import Layout, Pictures, Published
from fedlit.data.image_datasets import PictureData
from fedlit.data.mapped_arrays import shared
from fedlit.data.normalise import pixel_normalisation, scaled
from fedlit.errors import ConfigError, DataError
from fedlit.results.records import read_metrics
from tests.problems import weights_of
from tests.real_files import Real

TRAIN, TEST, SIDE = 400, 100, 8


class Tiny(PictureData):
    """500 random pictures 1x8x8, as if published with 400 for training."""

    published = Published(Layout("Tiny", "tiny", ()), train_rows=TRAIN, test_rows=TEST)
    usual_mean, usual_std = (0.5,), (0.25,)

    def read(self, root: Path) -> Pictures:
        rng = np.random.default_rng(0)
        x = rng.integers(256, size=(TRAIN + TEST, 1, SIDE, SIDE), dtype=np.uint8)
        return Pictures.train_first(x, np.arange(TRAIN + TEST) % 10, TRAIN)


def ready(**options: Any) -> Tiny:
    data = Tiny(**({"partition": IID(num_clients=4)} | options if "fresh" not in options else options))
    data.setup()
    return data


def fit(data: PictureData, client: FedAvg | FedBC | None = None, **options: Any) -> FederatedTrainer:
    if client is None:
        torch.manual_seed(0)
        client = FedAvg(Softmax(SIDE * SIDE, 10), lr=0.05, batch_size=16, local_epochs=1)
    trainer = FederatedTrainer(
        **({"rounds": 2, "clients_per_round": 2, "engine": "sequential"} | options), enable_progress_bar=False
    )
    trainer.fit(client, datamodule=data)
    return trainer


def test_bytes_are_held_once_and_normalised_when_gathered() -> None:
    data = ready()
    x, y = data.rows(data.store, torch.tensor([3, 499]))
    published = data.read(Path())
    assert data.store["x"].dtype == torch.uint8
    assert torch.allclose(x, (torch.from_numpy(published.x[[3, 499]]) / 255 - 0.5) / 0.25, atol=1e-6)
    assert y.tolist() == [3, 9]
    assert data.sample_shape == (1, SIDE, SIDE)


def test_each_pixel_can_be_normalised_by_its_own_mean_and_deviation() -> None:
    data = ready(normalise="pixel")
    bytes_ = data.read(Path()).x.astype(np.float64)
    expected = (bytes_[[3, 499]] - bytes_.mean(0)) / (bytes_.std(0) + 0.001)
    x, _ = data.rows(data.store, torch.tensor([3, 499]))
    np.testing.assert_allclose(x.numpy(), expected, atol=1e-5)


def test_a_pixel_that_never_changes_becomes_zero() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (50, 1, 2, 2), dtype=np.uint8)
    pictures[:, 0, 1, 1] = 200
    normal = pixel_normalisation(pictures)
    np.testing.assert_allclose(scaled(normal, torch.from_numpy(pictures))[:, 0, 1, 1].numpy(), 0, atol=1e-2)


def test_pixels_with_a_mean_of_their_own_need_no_other() -> None:
    with pytest.raises(ConfigError, match=r"normalise is pixel.* Leave them out, or set data.normalise to channel"):
        ready(normalise="pixel", mean=[0.5])


def test_samples_take_the_dtype_of_the_model() -> None:
    data = ready()
    data.cast(torch.float64)
    assert data.rows(data.store, torch.tensor([0]))[0].dtype == torch.float64


def test_training_and_test_pictures_are_merged_unless_the_official_test_is_kept_apart() -> None:
    merged, apart = ready(), ready(global_test="official")
    everything = torch.cat([*merged.everyone.train, *merged.everyone.val, *merged.everyone.test])
    handed_out = torch.cat([*apart.everyone.train, *apart.everyone.val, *apart.everyone.test])
    assert sorted(everything.tolist()) == list(range(TRAIN + TEST))
    assert sorted(handed_out.tolist()) == list(range(TRAIN))
    assert apart.global_test.tolist() == list(range(TRAIN, TRAIN + TEST))


def test_diversity_tests_each_client_on_all_test_pictures_of_its_labels() -> None:
    data = ready(partition=Diversity(num_clients=5, classes_per_client=3, samples_per_client=50), val_fraction=0.0)
    for train, test in zip(data.everyone.train, data.everyone.test, strict=True):
        labels = set(data.labels(data.store, train).tolist())
        assert set(test.tolist()) == {row for row in range(TRAIN, TRAIN + TEST) if row % 10 in labels}


# ---- augmentation ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("program")
@pytest.mark.parametrize("augment", [pytest.param("crop", marks=pytest.mark.slow), "crop_flip"])
def test_augmented_training_is_the_same_in_both_engines(augment: str) -> None:
    def trained(engine: str, **options: Any) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        client = FedAvg(Softmax(SIDE * SIDE, 10).double(), lr=0.05, batch_size=16, local_epochs=1)
        return weights_of(fit(ready(augment=augment), client, engine=engine, **options))

    sequential, eager = trained("sequential"), trained("vectorized", compiled=False, lanes=2, workers=1)
    compiled = trained("vectorized", compiled=True, lanes=2, workers=1)
    for name, value in sequential.items():
        assert (value - eager[name]).abs().max() < 1e-10
        assert (value - compiled[name]).abs().max() < 1e-10


def test_augmentation_changes_training_and_not_evaluation() -> None:
    plain, crop = (fit(ready(augment=augment)) for augment in ("none", "crop"))
    first = [read["global/acc"] for read in (plain.loop.history.rows[0], crop.loop.history.rows[0])]
    assert first[0] == first[1]
    assert any(not a.equal(b) for a, b in zip(weights_of(plain).values(), weights_of(crop).values(), strict=True))


# ---- corruption ------------------------------------------------------------------------------------------------------


def test_rows_without_a_view_are_gathered_the_same_without_the_augmentation() -> None:
    data = ready(augment="crop_flip")
    index = data.global_test
    for found, expected in zip(data.plain_rows(data.store, index), data.rows(data.store, index), strict=True):
        assert torch.equal(found, expected)


def test_only_training_labels_are_flipped_and_the_kind_is_the_group() -> None:
    clean, data = ready(), ready(corruption=LabelFlip(exactly=2))
    assert data.groups == ["flipped", "flipped", "clean", "clean"]
    pictures = data.code.picture(data.everyone.train[0])
    assert sorted(pictures.tolist()) == sorted(clean.everyone.train[0].tolist())
    assert (data.labels(data.store, data.everyone.train[0]) != data.store["y"][pictures]).all()
    for part in ("val", "test"):
        rows = [getattr(own.everyone, part) for own in (clean, data)]
        assert all(a.equal(b) for a, b in zip(*rows, strict=True))
    assert clean.partition_hash != data.partition_hash


def test_flipped_labels_reach_the_training() -> None:
    clean, flipped = (fit(ready(corruption=LabelFlip(rate=rate))) for rate in (0.0, 1.0))
    losses = [trainer.loop.history.rows[-1]["train/loss"] for trainer in (clean, flipped)]
    assert abs(losses[0] - losses[1]) > 1e-3


# ---- fresh clients every round ---------------------------------------------------------------------------------------


def fresh(**options: Any) -> Tiny:
    return ready(**({"fresh": Fresh(clients=3, samples=50), "corruption": Imbalance(), "val_fraction": 0.3} | options))


def test_fresh_clients_differ_by_round_and_come_back_the_same_for_the_same_round() -> None:
    data = fresh()
    first, again, later = (data.load(round, [0, 1, 2]).train for round in (0, 0, 1))
    assert all(a.equal(b) for a, b in zip(first, again, strict=True))
    assert not any(a.equal(b) for a, b in zip(first, later, strict=True))
    assert [len(rows) for rows in later] == [50] * 3


def test_fresh_clients_never_see_validation_or_test_pictures() -> None:
    data = fresh()
    seen = {row for round in range(30) for rows in data.load(round, range(3)).train for row in rows.tolist()}
    held_out = set(data.global_val.tolist()) | set(data.global_test.tolist())
    assert (len(data.global_val), data.global_test.tolist()) == (120, list(range(TRAIN, TRAIN + TEST)))
    assert not seen & held_out
    assert len(seen) > 200


def test_a_run_with_fresh_clients_measures_the_pooled_tests_and_records_ids_and_groups(tmp_path: Path) -> None:
    trainer = fit(fresh(), clients_per_round=3, run=str(tmp_path / "run"), rounds=3)
    rows = read_metrics(tmp_path / "run" / "metrics.csv")
    assert set(trainer.loop.history.rows[-1]) >= {"global/acc", "val/acc", "train/loss", "min_user/weight"}
    assert not [name for name in trainer.loop.history.columns if name.startswith(("users/", "local/", "personal/"))]
    assert len(rows) == 4
    records = parquet.read_table(tmp_path / "run" / "clients.parquet").to_pydict()
    of_last = [k for k, round in enumerate(records["round"]) if round == 3]
    assert [records["client"][k] for k in of_last] == [6, 7, 8]
    assert [records["group"][k] for k in of_last] == fresh().load(2, range(3)).groups
    described = json.loads((tmp_path / "run" / "partition.json").read_text())
    assert described["num_clients"] == 3


def test_fresh_clients_refuse_an_algorithm_that_keeps_something_for_each() -> None:
    with pytest.raises(ConfigError, match="FedBC keeps 'dual' for each client, but data.fresh"):
        fit(fresh(), FedBC(Softmax(SIDE * SIDE, 10)), clients_per_round=3)


@pytest.mark.parametrize(
    ("options", "kept"), [({"keep_local": "all"}, "linear.bias"), ({"keep_optimizer": True}, "optimizer")]
)
def test_fresh_clients_refuse_all_that_would_be_kept_for_them(options: dict[str, Any], kept: str) -> None:
    with pytest.raises(ConfigError, match=f"FedAvg keeps '{kept}' for each client, but data.fresh"):
        fit(fresh(), FedAvg(Softmax(SIDE * SIDE, 10), **options), clients_per_round=3)


def test_fresh_and_a_partition_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="data.fresh and data.partition are both given"):
        Tiny(fresh=Fresh(), partition=IID(num_clients=2))


@pytest.mark.parametrize("option", ["clients", "samples"])
def test_a_fresh_population_of_nothing_is_refused(option: str) -> None:
    with pytest.raises(ConfigError, match=f"data.fresh.{option} is 0"):
        Fresh(**{option: 0})


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MNIST, FashionMNIST, CIFAR10])
def test_a_root_without_the_files_says_which_to_put_where(
    kind: type[PictureData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: Any) -> None:
        raise DataError("no network")

    monkeypatch.setattr("fedlit.data.image_datasets.fetch", offline)
    with pytest.raises(DataError, match="no network"):
        kind(root=str(tmp_path)).setup()


def test_the_root_is_the_one_named_or_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLIT_DATA", "/somewhere")
    assert (MNIST().root, MNIST(root="here").root) == (Path("/somewhere"), Path("here"))
    monkeypatch.delenv("FEDLIT_DATA")
    assert MNIST().root == Path("data")


def test_a_large_array_is_one_mapped_file_for_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLIT_CACHE", str(tmp_path))
    monkeypatch.setattr("fedlit.data.mapped_arrays.SMALLEST", 1)
    array = np.arange(1000, dtype=np.uint8).reshape(10, 100)
    first, second = shared(array), shared(array)
    (file,) = (tmp_path / "data").iterdir()
    assert isinstance(first, np.memmap)
    assert (Path(str(first.filename)), Path(str(second.filename))) == (file, file)
    assert np.array_equal(first, array)


def test_a_damaged_or_unwritable_cache_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedlit.data.mapped_arrays.SMALLEST", 1)
    monkeypatch.setenv("FEDLIT_CACHE", str(tmp_path))
    array = np.arange(100, dtype=np.uint8)
    shared(array)
    (file,) = (tmp_path / "data").iterdir()
    file.write_bytes(bytes(100))
    assert np.array_equal(shared(array), array)
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDLIT_CACHE", str(tmp_path / "file"))
    assert np.array_equal(shared(array), array)


SCRIPT = """
import sys
from fedlit import MNIST
data = MNIST(root=sys.argv[1], seed=int(sys.argv[2]))
data.setup()
print(data.partition_hash)
"""


def test_the_same_seed_gives_the_same_partition_of_the_real_set_in_two_processes(real: Real) -> None:
    root = str(real("mnist", "MNIST/raw"))

    here, other = (MNIST(root=root, seed=seed) for seed in (1, 2))
    here.setup()
    other.setup()
    command = [sys.executable, "-c", SCRIPT, root, "1"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.strip()
    assert told == here.partition_hash
    assert told != other.partition_hash


def test_cifar_as_in_exp_alpha_is_35000_15000_10000(real: Real) -> None:
    data = CIFAR10(
        root=str(real("cifar10", "cifar-10-batches-py")), fresh=Fresh(), val_fraction=0.3, corruption=Imbalance()
    )
    data.setup()
    assert (len(data._pool_and_val[0]), len(data.global_val), len(data.global_test)) == (35_000, 15_000, 10_000)
    assert data.sizes.tolist() == [1280] * 10


@pytest.mark.parametrize(("classes", "exponent"), [("2", "1.4"), ("1", "1.1"), ("3", "1.5")])
def test_tail_split_of_the_real_cifar_has_the_share_of_the_reference(real: Real, classes: str, exponent: str) -> None:
    with (Path(__file__).parent / "tables" / "fedbc_tail_split_bounds.csv").open() as file:
        cells = {(row["dataset"], row["C"], row["exponent"]): row for row in csv.DictReader(file)}
    data = CIFAR10(
        root=str(real("cifar10", "cifar-10-batches-py")),
        partition=PowerLaw(classes_per_client=int(classes), exponent=float(exponent)),
        split="tail",
        val_fraction=0.0,
        seed=1,
    )
    data.setup()
    seen = total = 0
    for train, test in zip(data.everyone.train, data.everyone.test, strict=True):
        known = data.labels(data.store, train).unique()
        seen += int(torch.isin(data.labels(data.store, test), known).sum())
        total += len(test)
    share = cells["cifar10", classes, exponent]["pooled_test_share_class_seen_in_own_train"]
    assert round(100 * seen / total, 2) == float(share)


@pytest.mark.slow  # its program alone takes half a minute; smaller ones are compiled in tests/engines
def test_lenet_on_real_cifar_runs_in_both_engines(real: Real) -> None:
    def trained(engine: str, **options: Any) -> dict[str, torch.Tensor]:
        data = CIFAR10(root=str(real("cifar10", "cifar-10-batches-py")), augment="crop", limit=40, seed=1)
        torch.manual_seed(0)
        client = FedBC(LeNet(3, 10), lr=0.05, batch_size=20, local_epochs=1)
        return weights_of(fit(data, client, engine=engine, rounds=1, **options))

    sequential, compiled = trained("sequential"), trained("vectorized", compiled=True)
    assert all((value - compiled[name]).abs().max() < 1e-4 for name, value in sequential.items())


def test_the_net_is_given_pictures() -> None:
    shapes = []

    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(SIDE * SIDE, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            shapes.append(tuple(x.shape[1:]))
            return self.linear(x.flatten(1))  # type: ignore[no-any-return]

    fit(ready(), FedAvg(Watching(), lr=0.1), rounds=1)
    assert set(shapes) == {(1, SIDE, SIDE)}
