"""The middle of a round: the clients of all servers at once, and each server's own come back to it."""

from typing import Any

import torch

from fedlit import Cloud, FedBC
from fedlit.client.cohort import Cohort, TrainedCohort
from tests.problems import run, tiny_data, tiny_net

SIZES = (7, 12, 16, 9, 11, 23)


def gathered(**options: Any) -> tuple[Any, list[Cohort]]:
    """What trains in a cloud of three servers after one event, and their next cohorts."""
    client = FedBC(tiny_net(), dual_lr=0.5, lr=0.05, batch_size=4, **options)
    trainer = run(client, tiny_data(SIZES), rounds=1, clients_per_round=2, cloud=Cloud(servers=3))
    protocol, parts = trainer.loop.federation, trainer.loop.parts
    protocol.gather(parts.gatherer)
    return parts.training, [protocol.waiting[server.id] for server in protocol.servers]


def equal(one: TrainedCohort, other: TrainedCohort) -> bool:
    same = [torch.equal(value, other.params[name]) for name, value in one.params.items()]
    return one.clients == other.clients and all(same)


def test_each_server_gets_its_own_clients_back_whatever_their_rates_are() -> None:
    training, cohorts = gathered()
    for cohort, rate in zip(cohorts, (0.05, 0.01, 0.05), strict=True):
        cohort.lrs = [rate] * len(cohort.clients)
    together = training.train(cohorts)
    assert [own.clients for own in together] == [cohort.clients for cohort in cohorts]
    assert all(equal(own, training.train([cohort])[0]) for own, cohort in zip(together, cohorts, strict=True))


def test_training_leaves_the_cohort_that_it_was_given_as_it_was() -> None:
    """An event that fails is played again with what was gathered, or from a copy of it."""
    training, cohorts = gathered()
    first = training.train([cohorts[0]])[0]
    again = training.train([cohorts[0]])[0]
    assert equal(first, again)
