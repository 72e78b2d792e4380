"""Ways to lose an algorithm's own term in a round: the anchor is the live model, the broadcast overwrites, the sign.

Public ports ran plain averaging by them; so, in the end, every term must act.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from fedlit import (
    Client,
    Cohort,
    Ditto,
    FedAvg,
    FedBCD,
    FedFor,
    PFedMe,
    ServerCallback,
    WeighedCohort,
)
from tests.cases import CASES, made
from tests.problems import kept_rows, largest_difference, run, tiny_net, weights_of

LOCAL: dict[str, Any] = {"lr": 0.05, "batch_size": 4, "local_steps": 4}
Params = dict[str, Tensor]


def z_start() -> Params:
    return {name: value.detach() for name, value in tiny_net().named_parameters()}


# the anchor


class Anchored(ServerCallback):
    """Notes z at the beginning of a round, and at every step whether the anchor is that and the model is not."""

    def __init__(self) -> None:
        self.z: Params = {}
        self.faithful: list[bool] = []
        self.moved: list[bool] = []

    def on_cohort_start(self, trainer: Any, client: Client, cohort: Cohort) -> None:
        self.z = {name: value.detach().clone() for name, value in client.net.named_parameters()}

    def note(self, client: Client) -> None:
        anchor, local = client.global_params, client.local_params
        self.faithful.append(all(torch.equal(anchor[name], self.z[name]) for name in self.z))
        self.moved.append(any(not torch.equal(local[name], self.z[name]) for name in self.z))


def noting(algorithm: type[Client], watch: Anchored) -> type[Client]:
    class Noting(algorithm):  # type: ignore[valid-type,misc]  # a class made at run time
        def run_step(self, *args: Any) -> Any:
            watch.note(self)
            return super().run_step(*args)

    return Noting


ANCHORED = (
    *("FedProx", "FedBC", "FedBC, from its own model", "FedDyn", "Ditto", "Ditto, interleaved", "Per-FedBC", "FedBCD"),
    *("FedBCD-I", "FedFor"),
)


@pytest.mark.parametrize("name", ANCHORED)
def test_the_anchor_does_not_move_while_a_client_trains(name: str) -> None:
    watch = Anchored()
    client = made(name, tiny_net(), **LOCAL)
    client.__class__ = noting(type(client), watch)
    run(client, rounds=2, callbacks=[watch])
    assert all(watch.faithful)
    assert sum(watch.moved) > len(watch.moved) / 2


# personal models and the broadcast


class Kept(ServerCallback):
    """How far each client's own model, as the next round finds it, is from what it left and from what it received."""

    def __init__(self, state: str) -> None:
        self.state = state
        self.left: dict[int, Params] = {}
        self.to_left: list[float] = []
        self.to_received: list[float] = []

    def on_cohort_start(self, trainer: Any, client: Client, cohort: Cohort) -> None:
        found, received = cohort.model(self.state), cohort.received
        for k, user in enumerate(cohort.clients):
            if user in self.left:
                own = {name: value[k] for name, value in found.items()}
                self.to_left.append(largest_difference(own, self.left[user]))
                self.to_received.append(largest_difference(own, {name: value[k] for name, value in received.items()}))

    def on_server_step_end(self, trainer: Any, client: Client, cohort: WeighedCohort) -> None:
        for user in cohort.clients:
            rows = trainer.loop.states
            self.left[user] = {name: rows.row(f"{self.state}.{name}", user).clone() for name in cohort.params}


OWN = {
    **dict.fromkeys(("Ditto", "Ditto, interleaved", "pFedMe"), "personal"),
    **dict.fromkeys(("FedBC, from its own model", "FedBCD", "FedBCD-I"), "local"),
}


@pytest.mark.parametrize("name", OWN)
def test_a_clients_own_model_is_not_overwritten_by_the_broadcast(name: str) -> None:
    kept = Kept(OWN[name])
    run(made(name, tiny_net(), **LOCAL), rounds=3, callbacks=[kept])
    assert len(kept.to_left) > 3
    assert max(kept.to_left) == 0
    assert min(kept.to_received) > 1e-4


# the sign, in what comes out


def distance(algorithm: type[Client], state: str, **options: Any) -> float:
    """The mean squared distance of the clients' models to the received one, after one round."""
    rows = kept_rows(run(algorithm(tiny_net(), **LOCAL, **options), rounds=1, sampler="all"))
    return sum(float((rows[f"{state}.{name}"] - start).square().sum()) for name, start in z_start().items())


PULLS: dict[str, tuple[type[Client], str, dict[str, Any]]] = {
    "ditto": (Ditto, "personal", {}),
    "pfedme": (PFedMe, "personal", {"inner_start": "w"}),
    "fedbcd": (FedBCD, "local", {"most_steps": 9}),
}


@pytest.mark.parametrize("name", PULLS)
def test_a_stronger_pull_ends_nearer(name: str) -> None:
    algorithm, state, options = PULLS[name]
    weak, middle, strong = (distance(algorithm, state, prox=prox, **options) for prox in (0.1, 1.0, 5.0))
    assert strong < middle < weak


def test_a_stronger_fedfor_goes_further_along_the_last_global_move() -> None:
    start, once = z_start(), weights_of(run(FedFor(tiny_net(), **LOCAL), rounds=1))

    def along(strength: float) -> float:
        twice = weights_of(run(FedFor(tiny_net(), strength=strength, **LOCAL), rounds=2))
        return sum(float(((twice[k] - once[k]) * (once[k] - start[k])).sum()) for k in start)

    assert along(1.0) > along(0.5) > along(0.0)


# the term acts


ACTING = {
    **dict.fromkeys(("SCAFFOLD I", "SCAFFOLD II", "FedDyn", "q-FedAvg", "Per-FedAvg, exact", "Per-FedBC"), "uniform"),
    **dict.fromkeys(("pFedMe", "FedBCD", "FedBCD-I"), "uniform"),
    **dict.fromkeys(("FedProx", "FedBC", "FedFor", "Exp-α", "FedAvgM", "FedAdam"), "samples"),
}
"""By how the averaging weighs that they are compared with."""
WEIGHED_BY_DUALS = ("FedBC", "Per-FedBC")
"""Here they are weighed alike, and their duals are not 0: the term acts in the local steps as well."""


@pytest.mark.parametrize("name", ACTING)
def test_the_special_term_acts_within_two_rounds(name: str) -> None:
    alike = {"weights": ACTING[name]}
    plain = weights_of(run(FedAvg(tiny_net(), **LOCAL), rounds=2, **alike))
    duals, weighed = ({"dual_init": 0.5}, alike) if name in WEIGHED_BY_DUALS else ({}, {})
    special = weights_of(run(made(name, tiny_net(), **LOCAL, **duals), rounds=2, **(CASES[name].trainer | weighed)))
    assert largest_difference(special, plain) > 1e-3


def test_dittos_pull_acts_on_the_personal_models_within_two_rounds() -> None:
    free, held = (kept_rows(run(Ditto(tiny_net(), prox=prox, **LOCAL), rounds=2)) for prox in (0.0, 1.0))
    assert float((free["personal.linear.weight"] - held["personal.linear.weight"]).abs().amax((1, 2)).min()) > 1e-3
