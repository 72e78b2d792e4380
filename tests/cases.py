"""The one table of algorithms with options under which each special term is strong, and which of them are quick."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
from torch import nn

from fedlit import (
    Buffer,
    Client,
    Clock,
    Cloud,
    Constant,
    Ditto,
    Exponential,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedBC,
    FedBCD,
    FedBCDI,
    FedDyn,
    FedFor,
    Latency,
    PerFedAvg,
    PerFedBC,
    PFedMe,
    Scaffold,
)
from fedlit.experiments.conformance.entries import ENTRIES, Entry

UNEVEN = Clock(Latency(arrival=Exponential(2.0), compute=Constant(1.0)))
OFFLINE: dict[str, Any] = {"offline_clients": 3}
TWO: dict[str, Any] = {"clients_per_round": 2}
"""Of four clients: with OFFLINE, two report and three train."""

VARIANTS = {
    "FedAvg, l2": Entry(partial(FedAvg, l2=0.4)),
    "FedAvg, momentum kept": Entry(partial(FedAvg, momentum=0.5, keep_optimizer=True)),
    "FedBC, l2": Entry(partial(FedBC, dual_lr=1.0, l2=0.4)),
    "FedBCD, l2": Entry(partial(FedBCD, l2=0.4)),
    "FedFor, hinge": Entry(partial(FedFor, strength=1.0, form="hinge")),
    "Ditto, l2": Entry(partial(Ditto, prox=1.0, l2=0.4)),
    "Per-FedAvg, exact, l2": Entry(partial(PerFedAvg, adapt_lr=0.2, l2=0.4)),
    "Per-FedAvg, HF, l2": Entry(partial(PerFedAvg, adapt_lr=0.2, form="hf", l2=0.4)),
    "Per-FedBC, two steps": Entry(partial(PerFedBC, dual_lr=1.0, adapt_lr=0.2, adapt_steps=2)),
    "pFedMe, l2": Entry(partial(PFedMe, prox=4.0, personal_lr=0.1, l2=0.4)),
    "pFedMe, from w": Entry(partial(PFedMe, prox=4.0, personal_lr=0.1, inner_start="w")),
    "pFedMe, Nesterov": Entry(partial(PFedMe, prox=4.0, personal_lr=0.1, inner_momentum=0.6)),
    "pFedMe, Nesterov, ν": Entry(partial(PFedMe, prox=4.0, personal_lr=0.1, inner_momentum=0.6, inner_nu=0.05)),
    "SCAFFOLD, momentum": Entry(partial(Scaffold, allow_momentum=True, momentum=0.5)),
    "SCAFFOLD + FedAdam": Entry(Scaffold, {"server_optimizer": FedAdam(lr=0.1)}),
    "FedDyn, measured over all": Entry(partial(FedDyn, alpha=0.5, eval_model="all_mean")),
    "FedDyn, measured over the cohort": Entry(partial(FedDyn, alpha=0.5, eval_model="cohort_mean")),
    "FedBCD-I, offline": Entry(partial(FedBCDI, **OFFLINE), TWO),
    "FedBCD-I, over all": Entry(partial(FedBCDI, server_over="all", **OFFLINE), TWO),
    "FedBCD-I, momentum reset": Entry(partial(FedBCDI, momentum_after_pull="reset", **OFFLINE), TWO),
    "FedAdagrad, momentum": Entry(FedAvg, {"server_optimizer": FedAdagrad(lr=0.1, beta1=0.5)}),
    "FedAvg, uniform": Entry(FedAvg, {"weights": "uniform"}),
    "FedBC, four of four": Entry(partial(FedBC, dual_lr=1.0), {"clients_per_round": 4}),
    "SCAFFOLD, cloud": Entry(Scaffold, {"cloud": Cloud(servers=3, first=2), "clock": UNEVEN, "clients_per_round": 1}),
    "FedBC, sync cloud": Entry(partial(FedBC, dual_lr=1.0), {"cloud": Cloud(servers=2), "clients_per_round": 1}),
    "SCAFFOLD, buffer": Entry(Scaffold, {"buffer": Buffer(size=2, concurrency=3), "clock": UNEVEN}),
}
"""Options that the list of `fedlit conformance` does not have, and servers other than one in rounds."""

CASES = ENTRIES | VARIANTS

KINDS = (
    *("FedAvg", "FedProx, stragglers", "FedBC, from its own model", "SCAFFOLD I", "FedDyn", "Ditto, interleaved"),
    *("Per-FedAvg, exact", "pFedMe", "FedBCD", "FedBCD-I", "local only", "FedProx + FedAdam + Exp-α"),
)
"""Every kind of step, state, phase, draw and server that the conformance list has."""


def made(name: str, net: nn.Module, **options: Any) -> Client:
    """A client of a case, with local options of the test's own."""
    return CASES[name].make(net, **options)


def slow_but(quick: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """The cases of a test, of which all but these are slow: for a law that a quick test proves for the whole list."""
    chosen = list(quick)
    given = list(cases)
    assert all(case in given for case in chosen), "a quick case that does not exist"
    several = [case if isinstance(case, tuple) else (case,) for case in given]
    return [
        pytest.param(*values, marks=() if case in chosen else pytest.mark.slow)
        for case, values in zip(given, several, strict=True)
    ]
