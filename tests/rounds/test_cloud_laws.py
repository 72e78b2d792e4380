"""Laws of clouds: what mixing keeps, what all servers' first step comes to, and that their numbers are but names."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlit import Cloud, FederatedTrainer, Given, QuotaSampler, RandomPairs, Ring
from fedlit.client.states import ClientStates
from fedlit.rounds.cloud import CloudProtocol
from fedlit.rounds.federation import Federation
from fedlit.server.cloud import Complete, Mixing
from fedlit.server.optimizers import SGD
from fedlit.server.server import Server
from tests.algorithms.test_oracles import Problem
from tests.cases import slow_but
from tests.problems import run, tiny_net
from tests.rounds.test_cloud import ACTIVE, CLOCK, client_of, theta

SERVERS = 4
ALIKE = Problem((12,) * 16)
"""Four servers with four clients each; all clients have as many samples."""


def trained(algorithm: str, rounds: int = 1, **options: Any) -> FederatedTrainer:
    common: dict[str, Any] = {"clients_per_round": ACTIVE, "clock": CLOCK, "eval_every": 100, "rounds": rounds}
    rate = SGD(lr=0.4) if algorithm == "fedavg" else "SGD"
    return run(client_of(algorithm), ALIKE.data, server_optimizer=rate, **(common | options))


def models(trainer: FederatedTrainer) -> np.ndarray:
    """(servers, classes, features + 1)."""
    return np.stack([theta(server.z) for server in trainer.loop.federation.servers])


# the first step


@pytest.mark.parametrize("mixing", [Complete(), Ring(), RandomPairs(0.5)], ids=lambda mixing: type(mixing).__name__)
@pytest.mark.parametrize("algorithm", ["fedbcd", "fedbcd_i", "fedavg"])
def test_the_mean_of_all_servers_first_steps_is_the_step_of_the_sync_cloud(algorithm: str, mixing: Mixing) -> None:
    """Mean form, equal sizes, equal z_n: each server takes its earliest clients; so does the flat one, by groups."""
    flat = trained(algorithm, sampler=QuotaSampler(groups=SERVERS))
    cloud = trained(algorithm, sampler="earliest", cloud=Cloud(servers=SERVERS, mixing=mixing))
    apart = models(cloud)
    assert np.ptp(apart, axis=0).max() > 1e-4, "the servers themselves went different ways"
    np.testing.assert_allclose(apart.mean(0), models(flat)[0], rtol=0, atol=1e-15)
    assert cloud.loop.federation.time == flat.loop.federation.time


def test_later_steps_are_not_those_of_the_sync_cloud() -> None:
    """The law holds from equal z_n only: were it to hold here too, servers would not be models of their own."""
    flat = trained("fedavg", 3, sampler=QuotaSampler(groups=SERVERS))
    cloud = trained("fedavg", 3, sampler="earliest", cloud=Cloud(servers=SERVERS))
    assert np.abs(models(cloud).mean(0) - models(flat)[0]).max() > 1e-8


# mixing


@st.composite
def doubly_stochastic(draw: st.DrawFn, size: int) -> list[list[float]]:
    """A mean of permutations with the identity among them (Birkhoff), and a little of everyone's mean: it connects."""
    permutations = draw(st.lists(st.permutations(range(size)), min_size=1, max_size=4))
    share = draw(st.floats(0.01, 0.5))
    matrices = [np.eye(size), *(np.eye(size)[list(order)] for order in permutations)]
    matrix: list[list[float]] = ((1 - share) * np.mean(matrices, axis=0) + share / size).tolist()
    return matrix


@st.composite
def clouds(draw: st.DrawFn) -> Cloud:
    """Every mixing, with as many servers as it takes."""
    count = draw(st.integers(2, 9))
    own = st.lists(doubly_stochastic(count), min_size=1, max_size=3).map(Given)
    mixing = draw(st.one_of(st.just(Complete()), st.just(Ring()), st.floats(0.01, 1).map(RandomPairs), own))
    first = count if isinstance(mixing, Given) else draw(st.integers(2, count))
    return Cloud(servers=count, first=first, mixing=mixing, iterations=draw(st.integers(1, 3)))


def protocol_of(cloud: Cloud, values: np.random.Generator) -> CloudProtocol:
    """Servers with float64 models that are drawn."""
    states, sizes = ClientStates(), torch.ones(1, dtype=torch.int64)
    servers = [Server(tiny_net(), SGD().build, [], sizes=sizes, states=states, id=n) for n in range(cloud.servers)]
    for server in servers:
        server.load_model({name: torch.from_numpy(values.normal(size=z.shape)) for name, z in server.params.items()})
    return CloudProtocol(Federation(servers), cloud, seed=int(values.integers(1000)))


@settings(max_examples=60, deadline=None)
@given(cloud=clouds(), seed=st.integers(0, 2**32 - 1), number=st.integers(0, 1000))
def test_every_mixing_keeps_the_mean_and_leaves_the_others_alone(cloud: Cloud, seed: int, number: int) -> None:
    values = np.random.default_rng(seed)
    protocol = protocol_of(cloud, values)
    before = np.stack([theta(server.z) for server in protocol.servers])
    stepping = sorted(values.choice(cloud.servers, cloud.servers_per_step, replace=False).tolist())
    protocol.events = number
    for _ in range(cloud.iterations):
        protocol.mix([protocol.servers[n] for n in stepping])
    after = np.stack([theta(server.z) for server in protocol.servers])
    np.testing.assert_allclose(after[stepping].mean(0), before[stepping].mean(0), rtol=0, atol=1e-12)
    others = np.setdiff1d(np.arange(cloud.servers), stepping)
    np.testing.assert_array_equal(after[others], before[others])
    spread = np.ptp(after[stepping], axis=0) <= np.ptp(before[stepping], axis=0) + 1e-12
    assert spread.all(), "nobody is further apart than before"


# names of servers

ORDER = np.array([2, 0, 3, 1])
"""Server n is called ORDER[n] in the other run."""
CHAIN = np.array([[0.7, 0.3, 0, 0], [0.3, 0.4, 0.3, 0], [0, 0.3, 0.4, 0.3], [0, 0, 0.3, 0.7]])


def renamed(matrix: np.ndarray) -> np.ndarray:
    """a'_{ORDER[n], ORDER[m]} = a_nm."""
    other = np.empty_like(matrix)
    other[np.ix_(ORDER, ORDER)] = matrix
    return other


@pytest.mark.parametrize("algorithm", slow_but(["fedbcd_i"], ["fedbcd", "fedbcd_i", "fedavg"]))
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"first": 2}, {"first": 2}),
        ({"first": 2, "protocol": "rigorous"}, {"first": 2, "protocol": "rigorous"}),
        ({"iterations": 2}, {"iterations": 2}),
        ({"mixing": Given([CHAIN.tolist()])}, {"mixing": Given([renamed(CHAIN).tolist()])}),
    ],
    ids=["async", "rigorous", "all, twice", "a matrix"],
)
def test_renaming_servers_renames_their_results(algorithm: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    """Latencies, batches and step counts belong to clients, which keep their server: only its number is another."""
    owners = np.repeat(np.arange(SERVERS), 4)
    runs = [
        trained(algorithm, 6, sampler="earliest", cloud=Cloud(servers=SERVERS, assign=assign.tolist(), **options))
        for assign, options in ((owners, one), (ORDER[owners], other))
    ]
    a, b = (trainer.loop.federation for trainer in runs)
    assert a.time == b.time > 0
    assert [server.clock for server in a.servers] == [b.servers[n].clock for n in ORDER]
    np.testing.assert_allclose(models(runs[0]), models(runs[1])[ORDER], rtol=0, atol=1e-13)
    assert np.abs(models(runs[0]) - models(runs[1])).max() > 1e-6, "the order matters to whoever goes by numbers"
