"""The suite that every algorithm must pass: on algorithms that pass, and on ones that are wrong on purpose."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from fedlit import Batch, Client, FedBC, FedProx, ServerCallback
from fedlit.conformance import Measured, checks
from fedlit.conformance.entries import ENTRIES
from fedlit.states import StateSpec
from tests.conftest import Call

QUICK = [
    checks.resumes_exactly,
    checks.same_seed_same_bits,
    checks.order_does_not_matter,
    checks.processes_agree,
    checks.differs_from_averaging,
]
"""Those that compile nothing."""


@pytest.mark.parametrize("name", [name for name in ENTRIES if name != "pFedMe, ν"])  # its 100 inner steps take minutes
def test_every_algorithm_passes_what_compiles_nothing(name: str) -> None:
    entry = ENTRIES[name]
    found = [one(entry.make, dict(entry.trainer)) for one in QUICK]
    found += checks.cohort_is_respected(entry.make, dict(entry.trainer))
    assert [one for one in found if not one.passed] == []


class Forgetful(FedProx):
    """Draws from a stream that no checkpoint knows."""

    def training_step(self, batch: Batch, batch_idx: int | Tensor) -> dict[str, Tensor]:
        step = super().training_step(batch, batch_idx)
        return {**step, "loss": step["loss"] * (1 + np.random.rand())}  # noqa: NPY002  # the mistake itself


class Meddling(FedBC):
    """Moves the duals of clients that do not take part."""

    def server_callbacks(self) -> list[Any]:
        return [*super().server_callbacks(), Meddler()]


class Meddler(ServerCallback):
    """Adds one to every row."""

    def on_server_step_end(self, trainer: Any, client: Client, cohort: Any) -> None:
        trainer.loop.states.column("dual").add_(1.0)


class Lost(FedProx):
    """Its anchor is the model that is being trained."""

    def distance_to_global(self) -> Tensor:
        return sum((x - x.detach()).square().sum() for x in self.local_params.values())  # type: ignore[return-value]


class Unsaved(Client):
    """A server state that is not in the callback's state_dict."""

    def state_spec(self) -> StateSpec:
        return {}

    def server_callbacks(self) -> list[Any]:
        return [Growing()]


class Growing(ServerCallback):
    """Steps further from round to round."""

    def __init__(self) -> None:
        self.rounds = 0

    def on_pseudo_gradient(self, trainer: Any, client: Client, cohort: Any) -> None:
        self.rounds += 1
        for value in cohort.pseudo_gradient.values():
            value.mul_(1 + 0.1 * self.rounds)


def caught(measured: Measured) -> bool:
    return not measured.passed


def test_a_term_that_is_lost_is_caught() -> None:
    assert caught(checks.differs_from_averaging(Lost, {}))


def test_rows_of_clients_outside_the_cohort_that_move_are_caught() -> None:
    assert caught(checks.cohort_is_respected(Meddling, {})[0])


def test_server_state_that_is_not_saved_is_caught() -> None:
    assert caught(checks.resumes_exactly(Unsaved, {}))


def test_draws_from_a_shared_stream_are_caught() -> None:
    assert caught(checks.resumes_exactly(Forgetful, {}))


def test_the_command_checks_one_algorithm_and_writes_what_it_measured(call: Call) -> None:
    answer = call("conformance --algorithm FedProx --json found.json --out found.md")
    assert (answer.code, "all 1 passed" in answer.out) == (0, True)
    found = json.loads(Path("found.json").read_text())["FedProx"]
    assert {one["check"] for one in found} >= {"engines agree", "resumes exactly", "differs from FedAvg"}
    assert "| FedProx |" in Path("found.md").read_text()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("FedProxx", "--algorithm FedProxx is no algorithm. Did you mean 'FedProx'"),
        ("no.such.Thing", "--algorithm no.such.Thing cannot be imported"),
        ("fedlit.Softmax", "is no algorithm"),
    ],
)
def test_what_is_no_algorithm_is_refused(call: Call, name: str, said: str) -> None:
    answer = call(f"conformance --algorithm {name}")
    assert answer.code == 2
    assert said in answer.err
