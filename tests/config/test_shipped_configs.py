"""Every shipped config trains a round on the real files; those that are not here are parsed."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from fedlit.data import image_datasets
from tests.cases import slow_but
from tests.conftest import SHIPPED, Call
from tests.real_files import Real

FILES = {
    "MNIST": ("mnist", "MNIST/raw"),
    "CIFAR10": ("cifar10", "cifar-10-batches-py"),
    "Shakespeare": ("shakespeare", "shakespeare"),
    "Digits": ("digits", "digits"),
    "OfficeCaltech10": ("office", "office"),
}
"""Data set -> its name among the packed ones, and the folder that it is unpacked to."""


def data_of(path: Path) -> str:
    name: str = yaml.safe_load(path.read_text())["data"]["class_path"]
    return name


ON_FILES = [path for path in SHIPPED if data_of(path) != "Synthetic"]


def root_of(name: str, real: Real, folder: Path) -> Path:
    """A folder with the real files of this data set."""
    if name not in FILES:
        pytest.skip(f"there are no files of {name} here")
    root = real(*FILES[name])
    if name != "Digits":
        return root
    (folder / "digits").symlink_to(root / "digits")
    (folder / "MNIST").symlink_to(real("mnist", "MNIST/raw") / "MNIST")  # one of the five, unpacked apart
    return folder


def shorter(path: Path) -> str:
    """One round of few clients, rows and steps; FedBCD's draw their steps, and of FedBCD-I's 80 more would train."""
    model = yaml.safe_load(path.read_text())["model"]["init_args"]
    fewer = {"local_steps": 1} | {key: 1 for key in ("most_steps", "offline_clients") if key in model}
    words = "".join(f" --model.{key} {value}" for key, value in fewer.items())
    return f"--trainer.rounds 1 --trainer.clients_per_round 2 --data.limit 2 --data.eval_clients 4{words}"


@pytest.fixture(scope="module", autouse=True)
def pictures_are_read_once() -> Iterator[None]:
    """Reading CIFAR-10 and its checksums takes longer than a round; what the readers refuse is tests/data/files'."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("read_cifar10", "read_mnist"):
            patch.setattr(image_datasets, name, cache(getattr(image_datasets, name)))
        yield


TRAINED = (
    *("mnist_cloud_async_fedbcd", "mnist_cloud_sync_fedprox", "cifar_fedavg", "cifar_fedbc", "cifar_flip_expalpha"),
    *("cifar_imbalance_expalpha_fedavgm", "mnist_centralized", "mnist_cloud_async_fedbcdi", "mnist_cloud_sync_fedavg"),
    *("mnist_ditto", "mnist_fedavg_aspg", "mnist_fedbc", "mnist_fedbcd", "mnist_fedbcdi", "mnist_feddyn"),
    *("mnist_fedfor", "mnist_fedprox", "mnist_perfedavg_pfedme", "mnist_perfedbc", "mnist_pfedme", "mnist_qfedavg"),
    *("cifar100_fedavg", "fashion_fedbc", "femnist_fedavg"),
    *("mnist_scaffold", "digits_fedbn", "office_fedbc", "shakespeare_fedprox", "shakespeare_scaffold"),
)
"""Every data set, algorithm, kind of partition and cloud. The others are parsed, and trained where slow tests are."""
BY_NAME = {path.stem: path for path in ON_FILES}


@pytest.mark.parametrize("path", slow_but([BY_NAME[name] for name in TRAINED], ON_FILES), ids=lambda path: path.stem)
def test_a_config_trains_a_round_on_the_real_files(path: Path, call: Call, real: Real, tmp_path: Path) -> None:
    root = root_of(data_of(path), real, tmp_path)
    answer = call(f"fit --config {path.name} --data.root {root} {shorter(path)} --run run")
    assert (answer.code, answer.err) == (0, "")
    assert "after 1 round" in answer.out


@pytest.mark.parametrize("path", ON_FILES, ids=lambda path: path.stem)
def test_a_config_is_complete_and_says_where_its_numbers_come_from(path: Path, call: Call) -> None:
    lines = path.read_text().splitlines()
    numbers = [
        line for line in lines if line.split(":")[0].strip() in ("rounds", "clients_per_round", "lr", "batch_size")
    ]
    assert lines[0].startswith("# ")
    assert len(numbers) == 4
    assert all("  # " in line for line in numbers)
    assert call(f"fit --config {path.name} --print_config").code == 0


EXP_ALPHA = [path for path in SHIPPED if path.stem.startswith(("cifar_imbalance", "cifar_flip"))]


@pytest.mark.parametrize("path", EXP_ALPHA, ids=lambda path: path.stem)
def test_configs_of_exp_alpha_measure_as_often_as_its_tables_need(path: Path) -> None:
    """acc40 counts rounds, from 5 on, and a half of 50 rounds is the 25th."""
    assert yaml.safe_load(path.read_text())["trainer"]["eval_every"] == 1


def test_exp_alphas_momentum_is_nesterovs() -> None:
    optimizers = [yaml.safe_load(path.read_text())["trainer"].get("server_optimizer", {}) for path in EXP_ALPHA]
    momenta = [one["init_args"]["nesterov"] for one in optimizers if one.get("class_path") == "fedlit.FedAvgM"]
    assert momenta == [True]


@pytest.mark.parametrize("name", ["cifar_fedbc", "mnist_fedbc", "fashion_fedbc", "cifar_perfedbc", "mnist_perfedbc"])
def test_configs_of_fedbc_on_pictures_have_the_step_of_the_dual_that_gives_the_papers_numbers(name: str) -> None:
    """With 0.01, the upper end of the paper's grid, table 2's cell is 15 points too low."""
    model = yaml.safe_load(BY_NAME[name].read_text())["model"]["init_args"]
    assert model["dual_lr"] == 1e-4
