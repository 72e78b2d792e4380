"""Four rounds, and two rounds and two more from the run's folder, end with the same bits for every algorithm."""

from pathlib import Path
from typing import Any

import pytest

from fedlit import (
    Client,
    Ditto,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedBC,
    FedBCD,
    FedBCDI,
    FedDyn,
    FederatedTrainer,
    FedFor,
    FedYogi,
    PerFedBC,
    PFedMe,
    Scaffold,
    ServerCallback,
)
from fedlit.errors import ResumeError
from tests.cases import slow_but
from tests.problems import run, tiny_net
from tests.trainer.test_resume import assert_same_bits

LOCAL: dict[str, Any] = {"lr": 0.05, "batch_size": 4, "local_steps": 3, "lr_decay": 0.9}
CASES: dict[str, tuple[type[Client], dict[str, Any], dict[str, Any]]] = {
    "fedbc": (FedBC, {"dual_lr": 0.5}, {}),
    "fedbc from local": (FedBC, {"dual_lr": 0.5, "start_from": "local"}, {}),
    "per_fedbc": (PerFedBC, {"dual_lr": 0.5, "adapt_lr": 0.2}, {}),
    "scaffold I": (Scaffold, {"option": "I"}, {}),
    "scaffold II": (Scaffold, {}, {}),
    "feddyn": (FedDyn, {"alpha": 0.7}, {}),
    "feddyn, measured over all": (FedDyn, {"alpha": 0.7, "eval_model": "all_mean"}, {}),
    "feddyn, measured over the cohort": (FedDyn, {"alpha": 0.7, "eval_model": "cohort_mean"}, {}),
    "ditto": (Ditto, {"prox": 1.5}, {}),
    "ditto interleaved": (Ditto, {"prox": 1.5, "order": "interleaved"}, {}),
    "pfedme": (PFedMe, {"prox": 4.0}, {}),
    "pfedme, all train": (PFedMe, {"prox": 4.0, "train_all": True}, {}),
    "fedbcd": (FedBCD, {}, {}),
    "fedbcd_i": (FedBCDI, {"offline_clients": 3}, {}),
    "fedbcd_i over all": (FedBCDI, {"offline_clients": 3, "server_over": "all"}, {}),
    "fedbcd_i, momentum reset": (FedBCDI, {"offline_clients": 3, "momentum_after_pull": "reset"}, {}),
    "fedfor": (FedFor, {"strength": 0.6}, {}),
    "momentum kept": (FedAvg, {"momentum": 0.5, "keep_optimizer": True}, {}),
    "head kept": (FedAvg, {"keep_local": "linear.bias"}, {}),
    "fedavgm": (FedAvg, {}, {"server_optimizer": FedAvgM(0.7)}),
    "fedadam": (FedAvg, {}, {"server_optimizer": FedAdam(0.1)}),
    "fedyogi": (FedAvg, {}, {"server_optimizer": FedYogi(0.1)}),
    "fedadagrad": (FedAvg, {}, {"server_optimizer": FedAdagrad(0.1, beta1=0.5)}),
    "scaffold with fedadam": (Scaffold, {}, {"server_optimizer": FedAdam(0.1)}),
}


def fitted(name: str, rounds: int, **trainer: Any) -> FederatedTrainer:
    algorithm, options, own = CASES[name]
    return run(algorithm(tiny_net(), **LOCAL, **options), rounds=rounds, clients_per_round=2, **own, **trainer)


def outcome(trainer: FederatedTrainer) -> dict[str, Any]:
    """z, everything that is kept for clients, and everything that the server keeps."""
    callbacks = [callback for callback in trainer.callbacks if isinstance(callback, ServerCallback)]
    return {
        "z": dict(trainer.loop.client.net.state_dict()),
        "clients": trainer.loop.states.state_dict(),
        "server": {type(callback).__name__: callback.state_dict() for callback in callbacks},
        "optimizer": trainer.optimizers[0].state_dict(),
        "measured": [row["global/loss"] for row in trainer.loop.history.rows if "global/loss" in row],
    }


QUICK = ["fedbc from local", "feddyn, measured over all", "fedbcd_i over all", "momentum kept", "scaffold with fedadam"]
"""What the conformance suite, which resumes every algorithm, has not."""


@pytest.mark.parametrize("name", slow_but(QUICK, CASES))
def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, name: str) -> None:
    fitted(name, 2, run=tmp_path / "run")
    resumed = fitted(name, 4, run=tmp_path / "run", resume=True)
    assert resumed.loop.rounds_done == 4
    assert_same_bits(outcome(resumed), outcome(fitted(name, 4)))


CHANGED: dict[str, tuple[type[Client], dict[str, Any], dict[str, Any]]] = {
    "pfedme beta": (PFedMe, {"beta": 1.0}, {"beta": 2.0}),
    "fedbcd server_lr": (FedBCD, {"server_lr": 0.5}, {"server_lr": 0.2}),
    "fedbcd_i server_lr": (
        FedBCDI,
        {"server_over": "all", "server_lr": 0.5},
        {"server_over": "all", "server_lr": 0.2},
    ),
    "per_fedbc adapt_steps": (PerFedBC, {"adapt_steps": 1}, {"adapt_steps": 2}),
    "scaffold server_lr": (Scaffold, {"server_lr": 1.0}, {"server_lr": 0.5}),
    "feddyn alpha": (FedDyn, {"alpha": 0.1}, {"alpha": 0.2}),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_run_is_not_resumed_with_another_option_of_its_algorithm(tmp_path: Path, name: str) -> None:
    algorithm, first, second = CHANGED[name]
    run(algorithm(tiny_net(), **LOCAL, **first), rounds=1, run=tmp_path / "run")
    with pytest.raises(ResumeError, match="holds a run with other settings"):
        run(algorithm(tiny_net(), **LOCAL, **second), rounds=2, run=tmp_path / "run", resume=True)


def test_what_is_compared_is_there_and_some_clients_come_only_after_the_resume() -> None:
    early, late = (outcome(fitted("scaffold with fedadam", rounds)) for rounds in (2, 4))
    assert float(early["server"]["ControlVariates"]["control"]["linear.weight"].abs().max()) > 0
    assert set(early["optimizer"]["state"][0]) == {"m", "v"}
    assert len(early["clients"]["clients"]) < len(late["clients"]["clients"])
