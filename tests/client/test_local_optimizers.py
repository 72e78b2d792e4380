"""The local optimisers that an option names: Adam and AdamW are torch's, in both engines, with and without a memory."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedlit import Client, FedAvg, FedBCD, FedBCDI, FedFor, QFedAvg, Scaffold
from fedlit.client.local_optimizers import LocalAdam, bias_correction
from fedlit.engines.base import plan_batches
from fedlit.errors import ConfigError
from fedlit.keys import Purpose, generator
from tests.problems import kept_rows, run, tiny_data, tiny_net, weights_of

BATCH, EPOCHS, ROUNDS, LR = 4, 2, 3, 0.05
ENGINES: dict[str, dict[str, Any]] = {
    "sequential": {"engine": "sequential"},
    "two lanes": {"engine": "vectorized", "compiled": False, "lanes": 2, "workers": 1},
}
ADAM: dict[str, Any] = {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "adam as it comes": ("adam", {}),
    "adam": ("adam", ADAM),
    "adamw": ("adamw", ADAM),
    "adam, kept": ("adam", ADAM | {"keep_optimizer": True}),
    "adamw, kept and clipped": ("adamw", ADAM | {"keep_optimizer": True, "clip": 0.5}),
}


def torchs(kind: str, options: dict[str, Any]) -> dict[str, Tensor]:
    """One client that trains in every round, by torch.optim on the batches that fedlit draws."""
    rest = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0} | options
    keeps, clip = rest.pop("keep_optimizer", False), rest.pop("clip", None)
    make = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind]
    data, net = tiny_data((23,)), tiny_net()
    data.setup("fit")
    rows = data.load(0, [0]).train[0].numpy()
    optimizer = make(net.parameters(), lr=LR, **rest)
    for round in range(ROUNDS):
        optimizer = optimizer if keeps else make(net.parameters(), lr=LR, **rest)
        passes = -(-len(rows) // BATCH)
        plan = plan_batches(
            generator(0, Purpose.BATCHES, round=round, client=0), rows, EPOCHS * passes, BATCH, per_epoch=passes
        )
        for index, count in zip(plan.index, plan.counts, strict=True):
            x, y = data.rows(data.store, torch.from_numpy(index[:count].copy()))
            optimizer.zero_grad()
            F.cross_entropy(net(x.double()), y).backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimizer.step()
    return {name: value.detach() for name, value in net.named_parameters()}


def fedlits(kind: str, options: dict[str, Any], **engine: Any) -> dict[str, Tensor]:
    client = FedAvg(tiny_net(), lr=LR, batch_size=BATCH, local_epochs=EPOCHS, optimizer=kind, **options)  # type: ignore[arg-type]
    return weights_of(run(client, tiny_data((23,)), rounds=ROUNDS, clients_per_round=1, **engine))


def gap(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_adam_and_adamw_are_torchs(case: str, engine: str) -> None:
    kind, options = CASES[case]
    assert gap(fedlits(kind, options, **ENGINES[engine]), torchs(kind, options)) <= 1e-12


@pytest.mark.usefixtures("program")
def test_compiled_adamw_that_keeps_its_memory_is_torchs() -> None:
    kind, options = CASES["adamw, kept and clipped"]
    compiled = {"engine": "vectorized", "compiled": True, "lanes": 1, "workers": 1}
    assert gap(fedlits(kind, options, **compiled), torchs(kind, options)) <= 1e-12


def test_each_option_of_adam_shows() -> None:
    """Or the comparisons above would prove less than they say."""
    whole = torchs("adamw", CASES["adamw, kept and clipped"][1])
    for other in ({"betas": (0.9, 0.95)}, {"betas": (0.8, 0.9)}, {"eps": 1e-8}, {"weight_decay": 0.0}, {"clip": None}):
        assert gap(whole, torchs("adamw", CASES["adamw, kept and clipped"][1] | other)) > 1e-4
    assert gap(whole, torchs("adam", CASES["adamw, kept and clipped"][1])) > 1e-4
    assert gap(whole, torchs("adamw", ADAM | {"clip": 0.5})) > 1e-4


def test_what_adam_keeps_of_each_client_goes_on_where_its_last_round_ended() -> None:
    client = FedAvg(tiny_net(), lr=LR, batch_size=BATCH, local_steps=7, optimizer="adam", keep_optimizer=True)
    rows = kept_rows(run(client, clients_per_round=4, rounds=3))
    assert rows["memory.steps"].tolist() == [21.0] * 4
    assert rows["memory.second.linear.weight"].min() > 0


def test_correction_of_adam_keeps_its_digits_in_float32() -> None:
    steps = torch.arange(1, 2000)
    exact = 1 - np.longdouble(0.999) ** steps.numpy().astype(np.longdouble)
    found = bias_correction(0.999, steps.float()).numpy()
    assert float(np.abs(found / exact - 1).max()) < 1e-6
    assert bias_correction(0.0, torch.tensor(1.0)) == 1


def test_adam_with_parameters_of_16_bits_counts_every_step() -> None:
    adam, params = LocalAdam(), {"x": torch.ones(3, dtype=torch.bfloat16)}
    state = adam.init(params)
    for _ in range(300):
        params, state = adam.step(params, {"x": torch.ones(3, dtype=torch.bfloat16)}, state, 1e-3)
    assert (float(state["steps"]), params["x"].dtype) == (300.0, torch.bfloat16)


REFUSED: dict[str, tuple[type[Client], dict[str, Any], str]] = {
    "momentum": (
        FedAvg,
        {"optimizer": "adam", "momentum": 0.9},
        r"momentum is 0\.9, but .*'adam', .* optimizer to sgd",
    ),
    "betas": (FedAvg, {"betas": (0.5, 0.9)}, r"betas is \(0\.5, 0\.9\), but .*'sgd', .* optimizer to adam or adamw"),
    "eps": (FedAvg, {"optimizer": "aspg", "eps": 0.1}, r"eps is 0\.1, but .*'aspg'"),
    "clip": (FedAvg, {"optimizer": "aspg", "clip": 1.0}, "Set clip to null, or optimizer to sgd, adam or adamw"),
    "beta of 1": (FedAvg, {"optimizer": "adam", "betas": (0.9, 1.0)}, r"betas is \[0\.9, 1\.0\]; give two numbers"),
    "eps of 0": (FedAvg, {"optimizer": "adam", "eps": 0.0}, r"eps is 0\.0; give a number above 0"),
    "a typo": (FedAvg, {"optimizer": "adamm"}, "'adamm'; give sgd, adam, adamw or aspg"),
    "FedBCD": (FedBCD, {"optimizer": "adam"}, "'adam', but FedBCD's steps are projected gradient steps"),
    "FedBCD-I": (FedBCDI, {"optimizer": "adamw"}, "'adamw', but FedBCD's steps are projected gradient steps"),
    "SCAFFOLD II": (Scaffold, {"optimizer": "adam"}, "'adam', but option II of SCAFFOLD .* option to I"),
    "q-FedAvg": (QFedAvg, {"optimizer": "adam"}, "'adam', but q-FedAvg takes 1 / lr .* Give lipschitz"),
    "FedFor": (FedFor, {"optimizer": "adamw"}, "'adamw', but FedFor takes the server's move"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_do_not_go_together_are_refused(name: str) -> None:
    make, options, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        make(tiny_net(), **options)


@pytest.mark.parametrize(
    ("make", "options"), [(Scaffold, {"option": "I"}), (QFedAvg, {"lipschitz": 20.0})], ids=["SCAFFOLD I", "q-FedAvg"]
)
def test_algorithm_takes_adam_where_nothing_rests_on_plain_steps(make: type[Client], options: dict[str, Any]) -> None:
    adam, sgd = (weights_of(run(make(tiny_net(), optimizer=kind, **options))) for kind in ("adam", "sgd"))
    assert gap(adam, sgd) > 1e-3
