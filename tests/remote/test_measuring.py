"""What a federation measures: metrics of nodes that keep their predictions, and the bytes that are declared."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from fedlit import Client, Ditto, FedAvg, FedBC
from fedlit.experiments.conformance.federation import federated
from fedlit.experiments.conformance.problem import FEATURES, TINY, Problem, trained

BYTES = ("comm/down_mb", "comm/up_mb", "comm/first_mb", "comm/eval_mb")


class Wide(nn.Sequential):
    """A net of 72,000 numbers: the names and shapes of a message are less than 1 % of it."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(FEATURES, 8000), nn.Tanh(), nn.Linear(8000, 3))


WIDE = Problem(Wide, {"lr": 1e-4, "batch_size": 8})


def make(kind: type[Client], problem: Problem = TINY, **options: Any) -> Client:
    return kind(problem.net(), **problem.local, **options)


def test_a_measure_that_is_not_a_sum_has_the_values_of_users_and_none_of_all_samples(tmp_path: Path) -> None:
    client = partial(make, FedAvg, metrics=["AUROC"])
    apart = federated(client, TINY, tmp_path).trainer.loop.history
    together = trained(client()).loop.history
    values = {name: value for name, value in together.last().items() if "auroc" in name}
    pooled = {"global/auroc", "val/auroc", "local/pooled_auroc", "personal/pooled_auroc"}
    assert pooled < values.keys()
    assert {name: value for name, value in apart.last().items() if "auroc" in name} == {
        name: value for name, value in values.items() if name not in pooled
    }


@pytest.mark.parametrize(
    ("client", "is_sent_more_once"),
    [
        (partial(make, FedAvg, WIDE), False),
        (partial(make, FedAvg, WIDE, keep_local="2"), True),
        (partial(make, FedBC, WIDE, dual_lr=1e-4, start_from="local"), True),
        (partial(make, Ditto, WIDE), True),
    ],
    ids=["FedAvg", "FedPer", "FedBC", "Ditto"],
)
def test_bytes_are_those_that_are_declared_and_a_simulation_declares_the_same(
    client: Callable[[], Client], is_sent_more_once: bool, tmp_path: Path
) -> None:
    run = federated(client, WIDE, tmp_path, rounds=3)
    simulated = trained(client(), WIDE, rounds=3)
    totals = [
        {name: sum(row.get(name, 0) for row in one.loop.history.rows) for name in BYTES}
        for one in (run.trainer, simulated)
    ]
    declared, carried = totals[0], run.link.carried
    assert totals[1] == declared
    assert (declared["comm/first_mb"] > 0) == is_sent_more_once
    trains = sum(declared[name] for name in BYTES[:3])
    assert (carried["train"].down + carried["train"].up) / 1e6 == pytest.approx(trains, rel=0.01)
    evaluates = declared["comm/eval_mb"]
    assert (carried["evaluate"].down + carried["evaluate"].up) / 1e6 == pytest.approx(evaluates, rel=0.01)
