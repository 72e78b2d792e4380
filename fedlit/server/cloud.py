"""Cloud: several servers, each with clients and a model of its own, that mix their models when they step (FedBCD, 3.1).

    mix     w_n = sum_m a_nm z_m              over the servers that step together; a is doubly stochastic
    step    z_n <- w_n - eta_z (...)          the server's own step, from w_n; `iterations` times (K_z)

Event t, from t = 0 on, mixes by a^(t) in all its K_z iterations: (6a), Algorithm 1, and the input of both algorithms.
Only line 22 of Algorithm 2 prints a^(t,k). The text says that FedBCD-I does not change the servers' update, so we read
a^(t) there too, and a cloud mixes in the same way under every algorithm.

Protocols. `async`: the first B servers (`first`) to have their clients' reports step together; the others keep their
model, reports and clock, and come first in the next event. `rigorous` (appendix A): every server steps once in each
numbered round, either with the first B of that round or, when it has its reports, alone (w_n = z_n), and then starts
the next round. If `first` equals `servers`, no server is left behind. A Sync-cloud needs none of this: it is one server
with a QuotaSampler, which waits for every group. In the mean form with eta_z = 1 (plain averaging) w_n cancels, and
servers never learn of each other: give the server's optimiser a rate below 1.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import numpy as np

from fedlit.errors import ConfigError, require
from fedlit.keys import Purpose, generator
from fedlit.recorded import Recorded

Matrix = np.ndarray


class Mixing(ABC):
    """How servers that step together mix their models."""

    @property
    def is_fixed(self) -> bool:
        """Whether the matrix of the same servers is the same in every event."""
        return False

    @abstractmethod
    def matrix(self, servers: Sequence[int], seed: int, event: int) -> Matrix:
        """(servers, servers), doubly stochastic: row n holds the weights a_nm of server n's new model.

        Args:
            servers: ids of those that step together, in order.
            seed: seed of the run.
            event: t: number of events before this one. It is called once per iteration of the event.
        """

    def check(self, servers: int, first: int) -> None:  # noqa: B027  # nothing to check: only matrices have a size
        """Raise ConfigError if it cannot mix so many servers, `first` of which step together."""


@dataclass(frozen=True)
class Complete(Mixing):
    """Everyone's mean: a_nm = 1/B."""

    @property
    def is_fixed(self) -> bool:
        """True."""
        return True

    def matrix(self, servers: Sequence[int], seed: int, event: int) -> Matrix:
        """All entries are 1/B."""
        return np.full((len(servers), len(servers)), 1 / len(servers))


@dataclass(frozen=True)
class Ring(Mixing):
    """A mean of itself and its two neighbours, on a ring of the servers that step, in the order of their ids."""

    @property
    def is_fixed(self) -> bool:
        """True."""
        return True

    def matrix(self, servers: Sequence[int], seed: int, event: int) -> Matrix:
        """A circulant matrix; two servers take their mean."""
        count = len(servers)
        if count < 3:
            return Complete().matrix(servers, seed, event)
        one = np.eye(count)
        return (one + np.roll(one, 1, axis=1) + np.roll(one, -1, axis=1)) / 3


@dataclass(frozen=True)
class RandomPairs(Mixing):
    """A random graph, drawn once for every event: each pair is joined with a probability (Metropolis weights).

    Args:
        probability: that two servers that step together exchange their models.
    """

    probability: float = 0.5

    def __post_init__(self) -> None:
        require(
            0 < self.probability <= 1, f"RandomPairs.probability is {self.probability}; give a number above 0, up to 1."
        )

    def matrix(self, servers: Sequence[int], seed: int, event: int) -> Matrix:
        """a_nm = 1 / (1 + the larger number of neighbours) for joined pairs; a_nn is the rest of row n."""
        rng, count = generator(seed, Purpose.MIXING, round=event), len(servers)
        joined = np.triu(rng.random((count, count)) < self.probability, 1)
        joined = joined | joined.T
        neighbours = joined.sum(axis=1)
        weights = joined / (1 + np.maximum(neighbours[:, None], neighbours[None, :]))
        return np.asarray(weights + np.diag(1 - weights.sum(axis=1)))


@dataclass(frozen=True)
class Given(Mixing):
    """Matrices of your own, one for each event in turn, from the first on; all servers must step together.

    Args:
        matrices: each (servers, servers), a list of rows that sum to 1, as do the columns.
    """

    matrices: list[list[list[float]]]

    def __post_init__(self) -> None:
        require(len(self.matrices) > 0, "Given.matrices is empty. Give one matrix or more.")
        for matrix in self.matrices:
            check_doubly_stochastic(np.array(matrix, dtype=np.float64))
        require(
            agree(self.matrices),
            "Given.matrices never connect all servers, however often they are taken in turn, so the servers never "
            "agree. Add a link between those that are apart; matrices that only exchange models need a diagonal.",
        )

    @property
    def is_fixed(self) -> bool:
        """Whether there is only one matrix."""
        return len(self.matrices) == 1

    def matrix(self, servers: Sequence[int], seed: int, event: int) -> Matrix:
        """Event 0 uses the first matrix."""
        return np.array(self.matrices[event % len(self.matrices)], dtype=np.float64)

    def check(self, servers: int, first: int) -> None:
        """Require one row and column for each server, and that all servers step together."""
        sizes = {len(matrix) for matrix in self.matrices}
        require(
            sizes == {servers} and first == servers,
            f"Given.matrices have {sorted(sizes)} rows, trainer.cloud.servers is {servers} and first is {first}; all "
            "three must be the same: a matrix of your own mixes all servers.",
        )


def check_doubly_stochastic(matrix: Matrix) -> None:
    """Require that rows and columns sum to 1 and no entry is below 0, so that mixing keeps the mean of the models."""
    square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]
    fair = square and bool(np.isfinite(matrix).all()) and bool((matrix >= 0).all())
    sums = np.concatenate([matrix.sum(axis=0), matrix.sum(axis=1)]) if fair else np.zeros(1)
    if not fair or np.abs(sums - 1).max() > 1e-9:
        shown = np.array2string(matrix, separator=", ", threshold=50).replace("\n", "")
        raise ConfigError(
            f"A mixing matrix is not doubly stochastic: {shown}. It must be square and not negative, and every row and "
            "every column must sum to 1; then mixing keeps the mean of the servers' models."
        )


def agree(matrices: Sequence[Sequence[Sequence[float]]]) -> bool:
    """Whether servers that only mix, by these matrices in turn, all converge to their mean."""
    sizes = sorted({len(matrix) for matrix in matrices})
    require(len(sizes) == 1, f"Given.matrices have {sizes} rows. Give each matrix one row for each server.")
    whole_turn = reduce(np.matmul, [np.array(matrix, dtype=np.float64) for matrix in matrices])
    lengths = np.sort(np.abs(np.linalg.eigvals(whole_turn)))
    return bool((lengths[:-1] < 1 - 1e-9).all())


@dataclass(frozen=True)
class Cloud(Recorded):
    """Several servers.

    Args:
        servers: N: how many.
        first: B: how many step together, those that have their reports first; all unless given.
        protocol: whether the others wait with their reports (async), or step alone (rigorous, appendix A).
        mixing: how those that step together mix their models; their mean unless given.
        iterations: K_z: how often they mix and step in a round, with the same matrix.
        assign: which clients belong to which server: in blocks, at random, by the data's groups, or a list with the
            server of every client.
    """

    servers: int = 10
    first: int | None = None
    protocol: Literal["async", "rigorous"] = "async"
    mixing: Mixing = Complete()
    iterations: int = 1
    assign: Literal["blocks", "random", "groups"] | list[int] = "blocks"

    def __post_init__(self) -> None:
        require(self.servers >= 1, f"trainer.cloud.servers is {self.servers}; give 1 or more.")
        require(
            self.first is None or 1 <= self.first <= self.servers,
            f"trainer.cloud.first is {self.first}, but there are {self.servers} servers. Give 1 to {self.servers}.",
        )
        require(
            self.servers_per_step > 1 or self.servers == 1,
            f"trainer.cloud.first is 1 of {self.servers} servers: each would step alone, and they would never learn of "
            "each other. Give 2 or more.",
        )
        require(self.iterations >= 1, f"trainer.cloud.iterations is {self.iterations}; give 1 or more.")
        self.mixing.check(self.servers, self.servers_per_step)

    @property
    def servers_per_step(self) -> int:
        """B."""
        return self.servers if self.first is None else self.first

    def clients_of(self, population: int, groups: Sequence[str], seed: int) -> list[np.ndarray]:
        """The ids of each server's clients, in order."""
        if isinstance(self.assign, list):
            return self._listed(population)
        if self.assign == "groups":
            return self._by_groups(groups)
        ids = np.arange(population)
        if self.assign == "random":
            ids = generator(seed, Purpose.ASSIGN).permutation(ids)
        require(
            population >= self.servers,
            f"trainer.cloud.servers is {self.servers}, but there are {population} clients: a server would have none. "
            f"Give {population} servers or fewer.",
        )
        return [np.sort(block) for block in np.array_split(ids, self.servers)]

    def _listed(self, population: int) -> list[np.ndarray]:
        owners = np.array(self.assign)
        require(
            len(owners) == population and set(owners.tolist()) == set(range(self.servers)),
            f"trainer.cloud.assign names {len(owners)} clients and the servers {sorted(set(owners.tolist()))[:5]}…; it "
            f"needs one number for each of {population} clients, and every server from 0 to {self.servers - 1} in it.",
        )
        return [np.flatnonzero(owners == server) for server in range(self.servers)]

    def _by_groups(self, groups: Sequence[str]) -> list[np.ndarray]:
        names = sorted(set(groups))
        require(
            len(names) == self.servers,
            f"trainer.cloud.assign is 'groups', but the data have {len(names)} groups ({', '.join(names[:5])}) and "
            f"trainer.cloud.servers is {self.servers}. Set it to {len(names)}, or assign in blocks.",
        )
        return [np.array([k for k, group in enumerate(groups) if group == name]) for name in names]
