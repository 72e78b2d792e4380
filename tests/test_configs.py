"""Every shipped config trains a round on the real files; those that are not here are parsed."""

from pathlib import Path

import pytest
import yaml

from tests.conftest import SHIPPED, Call
from tests.real_files import Real

FILES = {
    "MNIST": ("mnist", "MNIST/raw"),
    "FashionMNIST": ("fashion", "FashionMNIST/raw"),
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


@pytest.mark.timeout(1800)  # a round of 80 ResNet-20 takes minutes on a busy machine
@pytest.mark.parametrize("path", ON_FILES, ids=lambda path: path.stem)
def test_a_config_trains_a_round_on_the_real_files(path: Path, call: Call, real: Real) -> None:
    name = data_of(path)
    if name == "FashionMNIST":
        pytest.skip("there are no files of Fashion-MNIST here")
    root = real(*FILES[name])
    if name == "Digits" and not (root / "MNIST").exists():  # unpacked apart
        (root / "MNIST").symlink_to(real("mnist", "MNIST/raw") / "MNIST")
    quick = "--trainer.rounds 1 --trainer.clients_per_round 2 --data.limit 8 --model.local_steps 1"
    answer = call(f"fit --config {path.name} --data.root {root} {quick} --run run")
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
