"""What stays with a client, normalisation, a head or everything, is its own: nobody else's data or model enters it."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedlit import (
    Client,
    Cohort,
    Ditto,
    FedAvg,
    FedBC,
    FederatedTrainer,
    FedProx,
    FixedSampler,
    PerFedBC,
    QFedAvg,
    ServerCallback,
    TensorData,
    WeighedCohort,
)
from tests.cases import made
from tests.problems import CLASSES, FEATURES, SIZES, kept_rows, largest_difference, run, tiny_net, weights_of

LOCAL: dict[str, Any] = {"lr": 0.05, "batch_size": 4, "local_steps": 4}


def normed() -> nn.Module:
    """BatchNorm first: its statistics depend on nothing but a client's samples."""
    torch.manual_seed(2)
    return nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, CLASSES)).double()


class Parts(nn.Module):
    """A head, and a base that has no say: the head's training depends on the client's own samples alone."""

    def __init__(self, share: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.base, self.head = (nn.Linear(FEATURES, CLASSES).double() for _ in range(2))
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x) + self.share * self.base(x)
        return logits


def data(others: float = 1.0) -> TensorData:
    """Four clients; the samples of all but the first are multiplied by `others`."""
    rng, owner = np.random.default_rng(8), np.repeat(np.arange(4), SIZES)
    x, y = rng.normal(size=(sum(SIZES), FEATURES)), rng.integers(CLASSES, size=sum(SIZES))
    x[owner > 0] *= others
    return TensorData(x, y, owner, num_classes=CLASSES, test_fraction=0.25, val_fraction=0)


def own_rows(trainer: FederatedTrainer, client: int) -> dict[str, Tensor]:
    states = trainer.loop.states
    return {name: states.row(f"own.{name}", client) for name in trainer.loop.client.local_tensors}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# everything


@cache
def alone(user: int) -> dict[str, Tensor]:
    return weights_of(run(FedAvg(tiny_net(), **LOCAL), rounds=3, sampler=FixedSampler([user])))


@pytest.mark.parametrize("keep_local", ["all", "linear"])
@pytest.mark.parametrize("algorithm", [FedAvg, FedProx, FedBC, QFedAvg])
def test_who_keeps_everything_trains_alone(algorithm: type[Client], keep_local: str) -> None:
    together = run(algorithm(tiny_net(), keep_local=keep_local, **LOCAL), rounds=3, sampler="all")
    for user in range(4):
        assert largest_difference(own_rows(together, user), alone(user)) <= 1e-12


# normalisation


def test_the_servers_normalisation_stays_as_it_was() -> None:
    trained = run(FedAvg(normed(), keep_local="norm", **LOCAL), data()).loop.client.net.state_dict()
    start = normed().state_dict()
    kept = {"0.weight", "0.bias", "0.running_mean", "0.running_var", "0.num_batches_tracked"}
    assert {name for name in start if torch.equal(trained[name], start[name])} == kept


def test_normalisation_statistics_of_two_clients_never_mix() -> None:
    first, second = (run(FedAvg(normed(), keep_local="norm", **LOCAL), data(others)) for others in (1.0, 3.0))
    for name in ("0.running_mean", "0.running_var", "0.num_batches_tracked"):
        assert torch.equal(own_rows(first, 0)[name], own_rows(second, 0)[name])
        assert not torch.equal(own_rows(first, 0)[name], own_rows(first, 1)[name])


class Handover(ServerCallback):
    """What every client starts with, and what it has at the end, of the tensors that stay with it."""

    def __init__(self) -> None:
        self.left: dict[int, dict[str, Tensor]] = {}
        self.faithful: list[bool] = []

    def on_cohort_start(self, trainer: Any, client: Client, cohort: Cohort) -> None:
        self.compare(cohort, cohort.received | cohort.received_buffers)

    def on_server_step_end(self, trainer: Any, client: Client, cohort: WeighedCohort) -> None:
        trained = cohort.params | cohort.buffers
        for k, user in enumerate(cohort.clients):
            self.left[user] = {name: trained[name][k].clone() for name in cohort.local_tensors}

    def compare(self, cohort: Cohort, received: dict[str, Tensor]) -> None:
        for k, user in enumerate(cohort.clients):
            if user in self.left:
                self.faithful.append(equal({name: received[name][k] for name in cohort.local_tensors}, self.left[user]))


@pytest.mark.parametrize("average_kept", [False, True])
def test_a_client_goes_on_with_the_normalisation_it_ended_with(average_kept: bool) -> None:
    handover = Handover()
    client = FedAvg(normed(), keep_local="norm", average_kept=average_kept, **LOCAL)
    run(client, data(), rounds=6, callbacks=[handover])
    assert len(handover.faithful) > 10
    assert all(handover.faithful)


class Records(ServerCallback):
    """The newest records of all clients."""

    def on_users_measured(
        self, trainer: Any, client: Client, cohort: WeighedCohort | None, records: dict[str, Any]
    ) -> None:
        self.records = records


@pytest.mark.parametrize("average_kept", [False, True])
def test_z_has_no_scores_where_it_is_not_a_whole_model(average_kept: bool) -> None:
    seen = Records()
    client = FedAvg(normed(), keep_local="norm", average_kept=average_kept, **LOCAL)
    run(client, data(), clients_per_round=4, callbacks=[seen])
    for name in ("acc_global", "loss"):
        assert np.isfinite(seen.records[name]).tolist() == [average_kept] * 4
    assert np.isfinite(seen.records["acc_personal"]).tolist() == [True] * 4


# a head


def test_the_servers_head_stays_as_it_was_and_the_base_is_averaged_by_size() -> None:
    problem = data()
    trainer = run(FedAvg(Parts(share=1.0), keep_local="head", **LOCAL), problem, rounds=3, sampler="all")
    z, start = weights_of(trainer), dict(Parts().named_parameters())
    shares = problem.sizes.double() / problem.sizes.sum()
    bases = torch.stack([trainer.loop.states.row("local.base.weight", user) for user in range(4)])
    torch.testing.assert_close(z["base.weight"], torch.tensordot(shares, bases, dims=1), rtol=0, atol=1e-12)
    assert equal({k: v for k, v in z.items() if "head" in k}, {k: v for k, v in start.items() if "head" in k})


def test_heads_of_two_clients_differ() -> None:
    trainer = run(FedAvg(Parts(share=1.0), keep_local="head", **LOCAL), data(), sampler="all")
    heads = [own_rows(trainer, user)["head.weight"] for user in range(4)]
    assert min(float((heads[0] - other).abs().max()) for other in heads[1:]) > 1e-2


def test_averaged_heads_are_the_servers_and_stay_the_clients() -> None:
    problem = data()
    plain, averaged = (
        run(FedAvg(Parts(), keep_local="head", average_kept=mean, **LOCAL), problem, sampler="all")
        for mean in (False, True)
    )
    shares = problem.sizes.double() / problem.sizes.sum()
    heads = torch.stack([own_rows(averaged, user)["head.weight"] for user in range(4)])
    expected = torch.tensordot(shares, heads, dims=1)
    torch.testing.assert_close(weights_of(averaged)["head.weight"], expected, rtol=0, atol=1e-12)
    assert all(equal(own_rows(plain, user), own_rows(averaged, user)) for user in range(4))


TERMS = (
    *("FedAvg", "FedProx", "FedBC", "FedBC, from its own model", "q-FedAvg", "FedFor", "Ditto", "SCAFFOLD I"),
    *("SCAFFOLD II", "FedDyn"),
)


@cache
def kept_head(name: str, others: float = 1.0) -> dict[str, Tensor]:
    client = made(name, Parts(), keep_local="head", **LOCAL)
    return own_rows(run(client, data(others), rounds=4, sampler="all"), 0)


@pytest.mark.parametrize("name", TERMS)
def test_nothing_of_other_clients_enters_a_kept_head(name: str) -> None:
    """Also not by a control variate, which is a mean over all clients."""
    assert equal(kept_head(name), kept_head(name, others=3.0))


@pytest.mark.parametrize("name", TERMS)
def test_terms_that_tie_a_client_to_the_server_leave_a_kept_head_alone(name: str) -> None:
    assert equal(kept_head(name), kept_head("FedAvg"))


@pytest.mark.parametrize("keep_local", ["none", "head"])
def test_both_orders_of_ditto_hold_the_personal_model_alike(keep_local: str) -> None:
    """On full batches they are the same steps: what is kept is held by neither."""
    full = LOCAL | {"batch_size": 64}
    first, turns = (
        run(Ditto(Parts(share=1.0), order=order, keep_local=keep_local, **full), data(), rounds=3, sampler="all")
        for order in ("personal_first", "interleaved")
    )
    for name in ("personal.head.weight", "personal.base.weight"):
        torch.testing.assert_close(kept_rows(turns)[name], kept_rows(first)[name], rtol=0, atol=1e-12)


def test_the_inner_pull_of_per_fedbc_leaves_a_kept_head_alone() -> None:
    free, pulled = (
        PerFedBC(Parts(), keep_local="head", adapt_lr=0.2, dual_lr=0.0, dual_init=dual, adapt_steps=2, **LOCAL)
        for dual in (0.0, 0.5)
    )
    assert equal(*(own_rows(run(client, data(), rounds=4, sampler="all"), 0) for client in (free, pulled)))
