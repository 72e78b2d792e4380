"""x may be several tensors: whatever the engine, a net of parts learns what the same net of the whole learns."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedlit import Client, FedAvg, FedBC, FedBCD, PerFedAvg, TensorData
from fedlit.errors import ConfigError, DataError
from fedlit.trainer.plain_values import describe
from tests.problems import CLASSES, FEATURES, kept_rows, largest_difference, run, tiny_data, traced_program, weights_of

LOCAL = {"lr": 0.05, "batch_size": 4, "local_epochs": 2}
CUT = 2
"""The first features are one input, the others the second."""


@dataclass
class Output:
    """What a net of transformers gives."""

    logits: Tensor
    hidden: Tensor


class Whole(nn.Module):
    """The net of one input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.linear = nn.Linear(FEATURES, CLASSES).double()

    def forward(self, x: Tensor) -> Any:
        return self.linear(x)


class Parts(Whole):
    """The same, of two inputs; a third one, a mask, hides nothing."""

    def forward(self, left: Tensor, right: Tensor, mask: Tensor | None = None) -> Any:  # type: ignore[override]
        whole = torch.cat([left, right], 1)
        return self.linear(whole if mask is None else torch.where(mask, whole, 0))


class GivesObject(Parts):
    def forward(self, left: Tensor, right: Tensor, mask: Tensor | None = None) -> Any:  # type: ignore[override]
        whole = torch.cat([left, right], 1)
        return Output(self.linear(whole), whole)


class GivesDict(Parts):
    def forward(self, left: Tensor, right: Tensor, mask: Tensor | None = None) -> Any:  # type: ignore[override]
        return {"logits": super().forward(left, right, mask), "hidden": left}


def parts_of(x: Tensor, form: str) -> Any:
    left, right = x[:, :CUT], x[:, CUT:]
    return {
        "tuple": (left, right),
        "dict": {"right": right, "left": left},
        "with a mask": {"left": left, "right": right, "mask": torch.ones(len(x), FEATURES, dtype=torch.bool)},
    }[form]


def data_of(form: str) -> TensorData:
    whole = tiny_data()
    x, y = whole._store["x"], whole._store["y"]
    return TensorData(parts_of(x, form), y, whole._owners, num_classes=CLASSES, test_fraction=0.25, val_fraction=0)


MAKERS: dict[str, Any] = {
    "fedavg": lambda net: FedAvg(net, **LOCAL),
    "fedbc": lambda net: FedBC(net, dual_lr=0.3, **LOCAL),
    "perfedavg": lambda net: PerFedAvg(net, **LOCAL),
    "fedbcd": lambda net: FedBCD(net, **LOCAL),
}
ENGINES: dict[str, dict[str, Any]] = {
    "sequential": {"engine": "sequential"},
    "eager lanes": {"engine": "vectorized", "compiled": False, "lanes": 2},
    "one eager lane": {"engine": "vectorized", "compiled": False, "lanes": 1},
    "compiled": {"engine": "vectorized", "compiled": True, "lanes": 2, "workers": 2},
}


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    return {name: run(make(Whole()), finetune_epochs=2, finetune_lr=0.1) for name, make in MAKERS.items()}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("maker", MAKERS)
def test_a_net_of_parts_learns_what_the_net_of_the_whole_learns(
    whole: dict[str, Any], maker: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedlit.engines.vectorized.compile_program", traced_program)
    fitted = run(MAKERS[maker](Parts()), data_of("dict"), finetune_epochs=2, finetune_lr=0.1, **ENGINES[engine])
    assert largest_difference(weights_of(fitted), weights_of(whole[maker])) <= 1e-10
    assert largest_difference(kept_rows(fitted), kept_rows(whole[maker])) <= 1e-10
    for name in ("global/acc", "personal/acc", "finetuned/acc"):
        expected = whole[maker].loop.history.series(name)[1]
        assert fitted.loop.history.series(name)[1] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("net", [Parts, GivesObject, GivesDict])
@pytest.mark.parametrize("form", ["tuple", "dict", "with a mask"])
def test_neither_the_form_of_x_nor_that_of_the_output_matters(whole: dict[str, Any], form: str, net: Any) -> None:
    fitted = run(FedAvg(net(), **LOCAL), data_of(form), engine="vectorized", compiled=False)
    assert largest_difference(weights_of(fitted), weights_of(whole["fedavg"])) <= 1e-10


def test_a_step_of_ones_own_calls_the_net_by_the_client(whole: dict[str, Any]) -> None:
    class Own(Client):
        def training_step(self, batch, batch_idx):
            losses = nn.functional.cross_entropy(self(batch.x), batch.y, reduction="none")
            return (losses * batch.row_weights).sum()

    fitted = run(Own(GivesObject(), **LOCAL), data_of("dict"), engine="vectorized", compiled=False)
    assert largest_difference(weights_of(fitted), weights_of(whole["fedavg"])) <= 1e-10


def test_other_inputs_are_other_data_for_the_run_folder() -> None:
    described = [describe(data_of(form), "data")["init_args"] for form in ("dict", "dict", "with a mask")]
    assert described[0] == described[1] != described[2]


# ---- mistakes ------------------------------------------------------------------------------------------------------

ROWS = 8
LEFT, RIGHT = np.zeros((ROWS, 2)), np.zeros((ROWS, 3))
Y, CLIENT = np.arange(ROWS) % 3, np.arange(ROWS) % 2


@pytest.mark.parametrize(
    ("x", "words"),
    [
        ({"left": LEFT, "right": RIGHT[1:]}, "x['right'] has 7"),
        ((LEFT, RIGHT[1:]), "x[1] has 7"),
        ({"left": LEFT, "not a name": RIGHT}, "the key 'not a name'"),
        ({"left": LEFT, "right": ["a"] * ROWS}, "x['right'] has type"),
        ({"left": LEFT, "right": np.full((ROWS, 3), np.nan)}, "x['right'] has NaN"),
        ({}, "x is empty"),
        ([LEFT, RIGHT], "dict or tuple of arrays"),
        ({1, 2}, "x is empty: its shape is ()"),
    ],
    ids=["rows of a dict", "rows of a tuple", "key", "text", "nan", "empty", "list", "set"],
)
def test_several_inputs_that_do_not_fit_are_refused_by_name(x: Any, words: str) -> None:
    with pytest.raises(DataError) as refused:
        TensorData(x, Y, CLIENT)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        ({"left": LEFT, "write": RIGHT}, ["'write'", "left, right, mask", "Did you mean 'right'"]),
        ((LEFT,), ["missing a required argument: 'right'", "1 input"]),
        ({"left": LEFT, "right": LEFT}, ["left (2,), right (2,)"]),
    ],
    ids=["unknown", "missing", "shape"],
)
def test_a_net_that_does_not_take_the_inputs_is_refused_with_its_arguments(x: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        run(FedAvg(Parts(), **LOCAL), TensorData(x, Y, CLIENT, num_classes=CLASSES), clients_per_round=2)
    assert [word for word in words if word not in str(refused.value)] == []


class Lists(TensorData):
    def rows(self, store, index):
        x, y = super().rows(store, index)
        return [x[:, :CUT], x[:, CUT:]], y


class Shared(TensorData):
    def rows(self, store, index):
        x, y = super().rows(store, index)
        return {"left": x[:, :CUT], "right": x[0, CUT:]}, y


@pytest.mark.parametrize(("kind", "words"), [(Lists, "is a list"), (Shared, "x['right'] of Shared is of shape (3,)")])
def test_rows_of_ones_own_data_module_are_checked(kind: type[TensorData], words: str) -> None:
    data = kind(np.zeros((ROWS, FEATURES)), Y, CLIENT, num_classes=CLASSES)
    with pytest.raises(ConfigError) as refused:
        run(FedAvg(Parts(), **LOCAL), data, clients_per_round=2)
    assert words in str(refused.value)
