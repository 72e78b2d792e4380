"""Dropout's masks are keyed: good draws, the same in every engine, and torch's own layers elsewhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlit import Client, Ditto, FedAvg, FederatedTrainer, PerFedAvg
from fedlit.client.cohort import TrainedCohort
from fedlit.client.step import Phase
from fedlit.engines.compiler import compile_program
from fedlit.engines.dropout import KeyedDropout
from fedlit.engines.sequential import SequentialEngine
from fedlit.engines.step_probe import reads_padding
from tests.problems import CLASSES, FEATURES, kept_rows, largest_difference, run, tiny_data, weights_of
from tests.server import trained as in_training

KEYS = np.random.default_rng(5).integers(2**63, size=400)
UNITS = 512


def masks(p: float, keys: np.ndarray = KEYS, calls: int = 1) -> Tensor:
    """(keys, calls, units) what is kept, as 0 and 1."""
    made = []
    for key in keys:
        drawing = KeyedDropout(torch.tensor(key))
        made.append(torch.stack([drawing.mask((UNITS,), p, torch.device("cpu")) for _ in range(calls)]))
    return torch.stack(made).double()


def deviations(sums: Tensor, count: int, p: float) -> Tensor:
    """How far sums of so many independent draws are from their mean, in standard deviations."""
    return (sums - count * (1 - p)) / (count * p * (1 - p)) ** 0.5


# ---- the draws -------------------------------------------------------------------------------------------------------


def hashed(key: int, call: int, place: np.ndarray) -> np.ndarray:
    """The hash once more, from its description: unsigned 32-bit numbers in NumPy."""

    def mixed(x: np.ndarray) -> np.ndarray:
        x = (x ^ (x >> np.uint32(16))) * np.uint32(0x21F0AAAD)
        x = (x ^ (x >> np.uint32(15))) * np.uint32(0x735A2D97)
        return x ^ (x >> np.uint32(15))

    low, high = np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)
    return mixed(mixed(place.astype(np.uint32) + low) ^ high ^ np.uint32((call * 0x1E3779B1) & 0x7FFFFFFF))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.75])
def test_a_mask_is_the_hash_of_key_call_and_place(p: float) -> None:
    for key in KEYS[:20].tolist():
        found = masks(p, np.array([key]), calls=3)[0]
        for call in range(
            3
        ):  # a signed number is at least t - 2**31 where the unsigned one, moved by 2**31, is at least t
            drawn = hashed(key, call, np.arange(UNITS)).view(np.int32).astype(np.int64) + 2**31
            assert found[call].tolist() == (drawn >= round(p * 2**32)).astype(float).tolist()


def test_a_compiled_program_draws_the_same_masks() -> None:
    def drawn(key: Tensor) -> tuple[Tensor, ...]:
        drawing = KeyedDropout(key)
        return tuple(drawing.mask((UNITS,), 0.3, key.device) for _ in range(2))

    compiled = compile_program(drawn, [torch.tensor(KEYS[0])])
    for key in torch.from_numpy(KEYS[:5]):
        assert torch.equal(torch.stack(tuple(compiled(key))), torch.stack(drawn(key)))


@pytest.mark.parametrize("p", [0.02, 0.2, 0.5, 0.9])
def test_each_number_is_kept_with_its_probability(p: float) -> None:
    drawn = masks(p)
    assert abs(float(deviations(drawn.sum(), drawn.numel(), p))) < 4
    by_unit, by_key = deviations(drawn[:, 0].sum(0), len(KEYS), p), deviations(drawn[:, 0].sum(1), UNITS, p)
    for own in (by_unit, by_key):  # neither a unit nor a step is favoured, and they spread as independent ones do
        assert own.abs().max() < 5
        assert 0.8 < float(own.square().mean()) < 1.25


@pytest.mark.parametrize("keys", [KEYS, np.arange(400) << 32], ids=["drawn", "upper words alike"])
def test_masks_of_other_steps_calls_and_units_are_independent(keys: np.ndarray) -> None:
    """Correlations are of the size 1/sqrt(n), even where lower words are the same and upper ones differ by a bit."""
    signs = 2 * masks(0.5, keys, calls=2) - 1
    pairs = {
        "steps": signs[1:, 0] * signs[:-1, 0],
        "calls": signs[:, 0] * signs[:, 1],
        "neighbours": signs[:, 0, 1:] * signs[:, 0, :-1],
        "moved by one step": signs[1:, 0, 1:] * signs[:-1, 0, :-1],
        "far apart": signs[:, 0, 256:] * signs[:, 0, :256],
    }
    for name, products in pairs.items():
        assert abs(float(products.mean())) * products.numel() ** 0.5 < 4.5, name


def of_round(round: int, clients: list[int]) -> TrainedCohort:
    """Clients with nine steps each."""
    cohort = in_training([9] * len(clients), clients=clients, steps=[9] * len(clients), received={})
    cohort.round, cohort.draw_rounds = round, [round] * len(clients)
    return cohort


def test_clients_rounds_steps_and_streams_have_keys_of_their_own() -> None:
    def keys(seed: int, round: int, stream: int = 0, clients: tuple[int, ...] = (0, 1, 2)) -> list[list[int]]:
        engine, cohort = SequentialEngine(seed, lambda store, index: (index, index)), of_round(round, [*clients])
        return [engine.mask_keys(cohort, Phase(stream=stream), k).tolist() for k in range(len(clients))]

    drawn = [keys(seed, round, stream) for seed in (0, 1) for round in (0, 1) for stream in (0, 1)]
    assert len(set(np.ravel(drawn).tolist())) == np.size(drawn)
    assert keys(0, 1, clients=(2, 0)) == [keys(0, 1)[2], keys(0, 1)[0]]


# ---- as torch's ------------------------------------------------------------------------------------------------------

X = torch.arange(1.0, 2 * 3 * 4 * 5 + 1).reshape(2, 3, 4, 5)
LAYERS: dict[str, tuple[Callable[..., Tensor], Tensor]] = {
    "dropout": (F.dropout, X),
    "dropout1d": (F.dropout1d, X[0]),
    "dropout2d": (F.dropout2d, X),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_dropped_tensor_is_scaled_or_zero_channel_by_channel_where_torch_does_that(layer: str) -> None:
    drop, x = LAYERS[layer]
    with KeyedDropout(torch.tensor(3)):
        ratio = drop(x, 0.5, True) / x
        changed = x.clone()
        again = drop(changed, 0.5, True, True)
    assert set(ratio.unique().tolist()) == {0.0, 2.0}
    assert again is changed
    if drop is not F.dropout:
        assert torch.equal(ratio, ratio.flatten(2)[..., :1].reshape(*x.shape[:2], *[1] * (x.dim() - 2)).expand_as(x))


@pytest.mark.parametrize("layer", LAYERS)
def test_evaluation_and_the_ends_of_the_range_are_as_torchs(layer: str) -> None:
    drop, x = LAYERS[layer]
    with KeyedDropout(torch.tensor(3)) as drawing:
        assert torch.equal(drop(x, 0.5, False), x)
        assert torch.equal(drop(x, 0.0, True), x)
        assert not drop(x, 1.0, True).any()
        with pytest.raises(ValueError, match="between 0 and 1"):
            drop(x, 1.5, True)
    assert drawing.calls == 0


# ---- in the engines --------------------------------------------------------------------------------------------------


class Functional(nn.Module):
    """Dropout that no layer announces, in place."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x.clone(), 0.3, self.training, inplace=True)


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.5), nn.ReLU(), Functional(), nn.Linear(8, CLASSES))


def with_channels() -> nn.Module:
    lines = nn.Sequential(nn.Unflatten(1, (4, 2)), nn.Dropout1d(0.5), nn.Flatten())
    return nn.Sequential(nn.Linear(FEATURES, 8), lines, nn.ReLU(), nn.Linear(8, CLASSES))


def convolving() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Dropout2d(0.5), nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, CLASSES)
    )


LOCAL: dict[str, Any] = {"lr": 0.05, "batch_size": 4, "local_epochs": 2}
CASES: dict[str, tuple[type[Client], Callable[[], nn.Module], tuple[int, ...]]] = {
    "dense": (FedAvg, dense, (FEATURES,)),
    "channels": (FedAvg, with_channels, (FEATURES,)),
    "convolution": (FedAvg, convolving, (1, 8, 8)),
    "three batches and second derivatives": (PerFedAvg, dense, (FEATURES,)),
    "two phases": (Ditto, dense, (FEATURES,)),
}
FORMS: dict[str, dict[str, Any]] = {
    "one eager lane": {"compiled": False, "lanes": 1, "workers": 1},
    "three eager lanes": {"compiled": False, "lanes": 3, "workers": 1},
}


def trained(case: str, **trainer: Any) -> FederatedTrainer:
    algorithm, make, shape = CASES[case]
    torch.manual_seed(3)
    return run(algorithm(make().double(), **LOCAL), tiny_data(shape=shape), **({"rounds": 2} | trainer))


def assert_equal(slow: FederatedTrainer, fast: FederatedTrainer) -> None:
    assert (slow.summary["engine"], fast.summary["engine"]) == ("sequential", "vectorized")
    assert largest_difference(weights_of(slow), weights_of(fast)) <= 1e-10
    assert largest_difference(kept_rows(slow), kept_rows(fast)) <= 1e-10


@pytest.mark.parametrize("case", CASES)
def test_eager_lanes_have_the_masks_of_the_sequential_engine(case: str) -> None:
    slow = trained(case)
    for form in FORMS.values():
        assert_equal(slow, trained(case, engine="vectorized", **form))


@pytest.mark.usefixtures("program")
@pytest.mark.parametrize(("case", "lanes"), [("dense", 2), ("convolution", 1)])
def test_compiled_lanes_have_the_masks_of_the_sequential_engine(case: str, lanes: int) -> None:
    fast = trained(case, engine="vectorized", compiled=True, lanes=lanes, workers=2)
    assert fast.summary["compiled"]
    assert_equal(trained(case), fast)


def test_dropout_changes_training() -> None:
    def plain() -> FederatedTrainer:
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES)).double()
        return run(FedAvg(net, **LOCAL), rounds=2)

    with_masks, without = (list(weights_of(one).values()) for one in (trained("dense"), plain()))
    assert any(float((a - b).abs().max()) > 1e-3 for a, b in zip(with_masks, without, strict=True))


@pytest.mark.parametrize("form", ["sequential", "three eager lanes"])
def test_resumed_run_draws_the_masks_of_an_uninterrupted_one(form: str, tmp_path: Path) -> None:
    options = {"engine": "vectorized", **FORMS[form]} if form in FORMS else {"engine": "sequential"}
    whole = trained("dense", rounds=4, **options)
    trained("dense", rounds=2, **options).save_checkpoint(tmp_path / "half.ckpt")
    again = FederatedTrainer(
        rounds=4, clients_per_round=3, precision="64-true", initial_weights="net", enable_progress_bar=False, **options
    )
    torch.manual_seed(3)
    again.fit(FedAvg(dense().double(), **LOCAL), datamodule=tiny_data(), ckpt_path=tmp_path / "half.ckpt")
    assert largest_difference(weights_of(whole), weights_of(again)) == 0


class RowsSecond(nn.Module):
    """Drops (units, rows): a place's number then depends on how many rows there are."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x.T, 0.5, self.training).T


@pytest.mark.parametrize(("layer", "found"), [(RowsSecond, "training_step"), (lambda: nn.Dropout(0.5), None)])
def test_masks_that_padding_would_change_are_found(layer: Callable[[], nn.Module], found: str | None) -> None:
    net = nn.Sequential(nn.Linear(FEATURES, 8), layer(), nn.Linear(8, CLASSES)).double()
    assert reads_padding(FedAvg(net, **LOCAL), torch.linspace(-1, 2, FEATURES, dtype=torch.float64)) == found
