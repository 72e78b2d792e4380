"""A run's folder is taken up again with the options of its algorithm, and with no others."""

from pathlib import Path
from typing import Any

import pytest

from fedlit import (
    Client,
    FedBCD,
    FedBCDI,
    FedDyn,
    PerFedBC,
    PFedMe,
    Scaffold,
)
from fedlit.errors import ResumeError
from tests.cases import CASES, made, slow_but
from tests.problems import run, tiny_net

LOCAL: dict[str, Any] = {"lr": 0.05, "batch_size": 4, "local_steps": 3, "lr_decay": 0.9}


QUICK = ["FedBC, from its own model", "SCAFFOLD + FedAdam", "FedBCD-I, over all"]


@pytest.mark.usefixtures("few_inner_steps")
@pytest.mark.parametrize("name", slow_but(QUICK, CASES))
def test_a_runs_folder_knows_the_same_options_again(tmp_path: Path, name: str) -> None:
    """That it goes on to the same bits is the conformance suite's law; here it is taken for the same run."""
    options = {"run": tmp_path / "run", "resume": True, "clients_per_round": 2} | CASES[name].trainer
    for rounds in (1, 2):
        assert run(made(name, tiny_net(), **LOCAL), rounds=rounds, **options).loop.rounds_done == rounds


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
