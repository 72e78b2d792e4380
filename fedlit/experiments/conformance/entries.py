"""The algorithms of fedlit, each with options under which its special term is strong."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fedlit.algorithms.centralized import Centralized
from fedlit.algorithms.ditto import Ditto
from fedlit.algorithms.fedavg import FedAvg
from fedlit.algorithms.fedbc import FedBC
from fedlit.algorithms.fedbcd import FedBCD
from fedlit.algorithms.fedbcdi import FedBCDI
from fedlit.algorithms.feddyn import FedDyn
from fedlit.algorithms.fedfor import FedFor
from fedlit.algorithms.fedprox import FedProx
from fedlit.algorithms.perfedavg import PerFedAvg
from fedlit.algorithms.perfedbc import PerFedBC
from fedlit.algorithms.pfedme import PFedMe
from fedlit.algorithms.qfedavg import QFedAvg
from fedlit.algorithms.scaffold import Scaffold
from fedlit.client.base import Client
from fedlit.experiments.conformance.problem import NORMED, Problem
from fedlit.server.optimizers import FedAdagrad, FedAdam, FedAvgM, FedYogi
from fedlit.server.weights import ExpAlpha


@dataclass(frozen=True)
class Entry:
    """An algorithm as it is checked."""

    make: Callable[..., Client]
    trainer: dict[str, Any] = field(default_factory=dict)
    problem: Problem | None = None
    """Its own net and samples; those of the command if None."""


ENTRIES = {
    "FedAvg": Entry(FedAvg),
    "FedProx": Entry(partial(FedProx, mu=1.0)),
    "FedProx, stragglers": Entry(partial(FedProx, mu=1.0, stragglers=0.5)),
    "FedBC": Entry(partial(FedBC, dual_lr=1.0)),
    "FedBC, from its own model": Entry(partial(FedBC, dual_lr=1.0, start_from="local")),
    "Per-FedBC": Entry(partial(PerFedBC, dual_lr=1.0, adapt_lr=0.2)),
    "q-FedAvg": Entry(partial(QFedAvg, q=2.0)),
    "SCAFFOLD I": Entry(partial(Scaffold, option="I")),
    "SCAFFOLD II": Entry(Scaffold),
    "FedDyn": Entry(partial(FedDyn, alpha=0.5)),
    "Ditto": Entry(partial(Ditto, prox=1.0)),
    "Ditto, interleaved": Entry(partial(Ditto, prox=1.0, order="interleaved")),
    "Per-FedAvg, exact": Entry(partial(PerFedAvg, adapt_lr=0.2)),
    "Per-FedAvg, HF": Entry(partial(PerFedAvg, adapt_lr=0.2, form="hf")),
    "Per-FedAvg, FO": Entry(partial(PerFedAvg, adapt_lr=0.2, form="fo")),
    "pFedMe": Entry(partial(PFedMe, prox=4.0, personal_lr=0.1, beta=1.5)),
    "pFedMe, ν": Entry(partial(PFedMe, prox=4.0, personal_lr=0.1, inner_nu=0.05)),
    "pFedMe, all train": Entry(partial(PFedMe, prox=4.0, personal_lr=0.1, train_all=True)),
    "FedBCD": Entry(FedBCD),
    "FedBCD-I": Entry(FedBCDI),
    "FedFor": Entry(partial(FedFor, strength=1.0)),
    "local only": Entry(partial(FedAvg, keep_local="all")),
    "FedPer (bias)": Entry(partial(FedAvg, keep_local="linear.bias")),
    "centralised": Entry(Centralized),
    "Exp-α": Entry(FedAvg, {"weights": ExpAlpha(0.1)}),
    "FedAvgM": Entry(FedAvg, {"server_optimizer": FedAvgM()}),
    "FedAdam": Entry(FedAvg, {"server_optimizer": FedAdam(lr=0.1)}),
    "FedYogi": Entry(FedAvg, {"server_optimizer": FedYogi(lr=0.1)}),
    "FedAdagrad": Entry(FedAvg, {"server_optimizer": FedAdagrad(lr=0.1)}),
    "FedProx + FedAdam + Exp-α": Entry(
        partial(FedProx, mu=1.0), {"server_optimizer": FedAdam(lr=0.1), "weights": ExpAlpha(0.1)}
    ),
}
WITH_NORM = {
    "FedAvg, BatchNorm": Entry(FedAvg, problem=NORMED),
    "FedBC, BatchNorm": Entry(partial(FedBC, dual_lr=1.0), problem=NORMED),
    "FedBN": Entry(partial(FedAvg, keep_local="norm"), problem=NORMED),
}
"""Those on a net with BatchNorm."""
