"""What a round keeps of those who took no step; `test_transaction.py` has what it keeps when something raises."""

from typing import Any

import numpy as np
import torch

from fedlit import Client, Cohort, FedBC, FederatedTrainer, FixedSampler, ServerCallback
from tests.problems import run, tiny_net

LOCAL: dict[str, Any] = {"lr": 0.05, "batch_size": 4, "dual_lr": 0.5}
IDLE = {0: 1, 2: 3}
"""Client 1 takes no step in the first round and client 3 none in the third."""


class Resting(FedBC):
    """Some clients have no time."""

    def local_work(self, cohort: Cohort, planned: np.ndarray, generator_of: Any) -> np.ndarray:
        steps: np.ndarray = planned.copy()
        steps[[client == IDLE.get(cohort.round) for client in cohort.clients]] = 0
        return steps


class Rows(ServerCallback):
    """What is kept of every client after each round."""

    decides = False

    def __init__(self) -> None:
        self.after: list[dict[int, dict[str, torch.Tensor]]] = []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        states = trainer.loop.states
        names = states.state_dict()["rows"]
        self.after.append({who: {name: states.row(name, who).clone() for name in names} for who in states.touched})


def played(kind: type[Client]) -> tuple[FederatedTrainer, Rows]:
    kept = Rows()
    return run(kind(tiny_net(), **LOCAL), rounds=4, sampler=FixedSampler([0, 1, 3]), callbacks=[kept]), kept


def test_client_that_takes_no_step_is_as_if_it_had_not_been_drawn() -> None:
    _, kept = played(Resting)
    assert [sorted(rows) for rows in kept.after] == [[0, 3], [0, 1, 3], [0, 1, 3], [0, 1, 3]]
    moved = [
        {who for who, rows in after.items() if any(not torch.equal(rows[name], before[who][name]) for name in rows)}
        for before, after in zip(kept.after[1:], kept.after[2:], strict=False)
    ]
    assert moved == [{0, 1}, {0, 1, 3}]
