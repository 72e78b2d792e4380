"""A cached backbone: the run is the one without a cache, and what cannot be cached is refused with the reason."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedlit import Client, FedAvg, FedBC, FederatedTrainer, PerFedAvg, TensorData
from fedlit.engines import backbone
from fedlit.errors import ConfigError
from fedlit.experiments.conformance.problem import everything, largest_gap
from tests.problems import CLASSES, FEATURES, run, tiny_data, traced_program

SIZES = (8, 16, 24, 32)
LOCAL: dict[str, Any] = {"lr": 0.1, "batch_size": 6, "local_epochs": 2}
"""Batches of six, none of them ragged: a product of one to three rows may have other last bits than one of more."""


class OnABackbone(nn.Module):
    """A frozen backbone with statistics, and a head with dropout."""

    def __init__(self, backbone: nn.Module | None = None, width: int = 8) -> None:
        super().__init__()
        layers = [nn.Linear(FEATURES, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, width)]
        self.backbone = nn.Sequential(*layers) if backbone is None else backbone
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(width, CLASSES))
        self.backbone.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        output: Tensor = self.head(self.backbone(x))
        return output


def net(*args: Any) -> OnABackbone:
    torch.manual_seed(6)
    return OnABackbone(*args)


def fitted(make: Callable[..., Client], cache: str | None, data: TensorData | None = None, **options: Any) -> Any:
    options = {"precision": "32-true", "rounds": 3, "finetune_lr": 0.1, "finetune_epochs": 1} | options
    return run(make(net(), cache=cache, **LOCAL), data or tiny_data(SIZES, newcomers=0.25), **options)


def numbers(trainer: FederatedTrainer) -> dict[str, list[float]]:
    history = trainer.loop.history
    return {name: trainer.history[name].tolist() for name in history.columns if not name.startswith("time/")}


def per_fedavg(net: nn.Module, **options: Any) -> Client:
    return PerFedAvg(net, adapt_lr=0.1, **(options | {"batch_size": 6}))


@pytest.mark.parametrize("make", [FedAvg, FedBC, per_fedavg])
def test_the_sequential_engine_has_the_bits_of_a_run_without_a_cache(make: Callable[..., Client]) -> None:
    options: dict[str, Any] = {"clients_per_round": 2}
    plain, cached = (fitted(make, cache, **options) for cache in (None, "backbone"))
    assert largest_gap(everything(plain), everything(cached)) == 0
    for name, values in numbers(plain).items():
        assert numbers(cached)[name] == pytest.approx(values, rel=1e-6, nan_ok=True), name


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "traced"])
def test_lanes_agree(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedlit.engines.vectorized.compile_program", traced_program)
    options = {"precision": "64-true", "clients_per_round": 2}
    plain = fitted(FedBC, None, **options)
    cached = fitted(FedBC, "backbone", engine="vectorized", compiled=compiled, **options)
    assert largest_gap(everything(plain), everything(cached)) < 1e-10


def test_the_backbone_runs_once_for_every_sample_and_afterwards_as_before(tmp_path: Path) -> None:
    rows: list[int] = []
    trained = net()
    trained.backbone[0].register_forward_hook(lambda _, args, output: rows.append(len(output)))
    data = tiny_data(SIZES)
    trainer = run(FedAvg(trained, cache="backbone", **LOCAL), data, rounds=9, precision="32-true", run=tmp_path)
    assert sum(rows) < sum(SIZES) + 100  # some rows are tried before the run
    assert "rows" not in vars(data)
    assert "backbone" not in data.store
    assert trainer.test(trainer.loop.client)[0]["global/loss"] == pytest.approx(
        trainer.history["global/loss"][-1], rel=1e-5
    )
    assert "forward" not in vars(trainer.personal_model(0).backbone)
    again = run(FedAvg(net(), **LOCAL), tiny_data(SIZES), rounds=9, precision="32-true")
    assert largest_gap(everything(again), everything(trainer)) == 0


def test_a_run_with_a_cache_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    whole = fitted(FedBC, "backbone", clients_per_round=2)
    fitted(FedBC, "backbone", clients_per_round=2, rounds=1, run=tmp_path)
    again = fitted(FedBC, "backbone", clients_per_round=2, run=tmp_path, resume=True)
    assert largest_gap(everything(whole), everything(again)) == 0


def test_more_than_a_size_is_in_a_mapped_file_that_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memory = fitted(FedBC, "backbone", clients_per_round=2)
    monkeypatch.setattr(backbone, "IN_MEMORY", 10.0)
    with caplog.at_level("INFO"):
        mapped = fitted(FedBC, "backbone", clients_per_round=2, run=tmp_path)
    assert largest_gap(everything(memory), everything(mapped)) == 0
    assert f"cache: the outputs of 'backbone' for 80 samples, 0.0 MB in a file in {tmp_path}" in caplog.text
    assert not list((tmp_path / "checkpoints").glob("cache-*"))


def test_a_cache_larger_than_the_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbone, "IN_MEMORY", 10.0)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(ConfigError, match=r"outputs for 80 samples need 0\.0 GB, but .* has 0\.0 GB left"):
        fitted(FedBC, "backbone", clients_per_round=2)


class Residual(OnABackbone):
    """The head reads x too."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        output: Tensor = self.head(self.backbone(x) + x.mean(1, keepdim=True))
        return output


class Late(OnABackbone):
    """x is changed before the backbone sees it."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        output: Tensor = self.head(self.backbone(2 * x))
        return output


def layers(*more: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 8), *more)


@pytest.mark.parametrize(
    ("make", "cache", "message"),
    [
        (net, "bakcbone", r"has no such module\. Did you mean 'backbone'"),
        (net, "head", r"is not frozen: 'head\.1\.weight' is trained"),
        (lambda: net(layers(nn.Dropout(0.5))), "backbone", r"drops out \(in '1'\)"),
        (lambda: net(layers(nn.RReLU())), "backbone", "draws random numbers"),
        (
            lambda: net(layers(nn.BatchNorm1d(8, track_running_stats=False))),
            "backbone",
            "normalises by the batch: a sample's output depends on the samples beside it",
        ),
        (Residual, "backbone", "is not all that reads x"),
        (Late, "backbone", "does not see x itself, once and alone"),
        (net, "backbone.1", "does not see x itself, once and alone"),
    ],
)
def test_what_cannot_be_kept_is_refused(make: Callable[[], nn.Module], cache: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(FedAvg(make(), cache=cache, **LOCAL), tiny_data(SIZES), precision="32-true")


def test_augmented_samples_and_several_inputs_are_refused() -> None:
    class Augmented(TensorData):
        @property
        def vary(self) -> Any:
            return lambda index, rng: index

    x, y, owner = np.random.default_rng(1).normal(size=(40, FEATURES)), np.arange(40) % CLASSES, np.arange(40) % 4
    with pytest.raises(ConfigError, match=r"samples of Augmented are augmented"):
        run(FedAvg(net(), cache="backbone", **LOCAL), Augmented(x, y, owner), precision="32-true")

    class Two(OnABackbone):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(a + b)

    with pytest.raises(ConfigError, match=r"would see one of several inputs"):
        run(FedAvg(Two(), cache="backbone", **LOCAL), TensorData((x, x), y, owner), precision="32-true")
