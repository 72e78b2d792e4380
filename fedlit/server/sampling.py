"""Client samplers: who trains in a round, drawn from (seed, round) and nothing else."""

from collections.abc import Sequence

import numpy as np

from fedlit.client.cohort import Selection
from fedlit.errors import ConfigError, nearest, require
from fedlit.keys import Purpose, generator
from fedlit.recorded import Recorded

Arrivals = np.ndarray | None
"""(clients,) simulated seconds until each client arrives; None without a clock."""


class Sampler(Recorded):
    """Base of the samplers; a subclass chooses ids, sorted, and everyone who trains also reports."""

    needs_clock = False
    """Whether `select` needs the simulated arrivals of `trainer.clock`."""

    names_clients = False
    """Whether its options name clients by their ids; in a cloud each server counts its own clients from 0."""

    draws_from_subset = True
    """Whether it can choose from a subset of the clients, such as those that are not in flight (`trainer.buffer`)."""

    def cohort_size(self, count: int, population: int) -> int:
        """Number of clients of a round if `count` are asked for."""
        return count

    def choose(self, rng: np.random.Generator, sizes: np.ndarray, count: int) -> Sequence[int]:
        """Ids of `count` clients out of those with these training sizes."""
        raise NotImplementedError

    def select(
        self, seed: int, round: int, sizes: np.ndarray, count: int, *, arrivals: Arrivals = None, server: int = 0
    ) -> Selection:
        """The cohort of a server's round: the same for every algorithm and engine."""
        rng = generator(seed, Purpose.COHORT, round=round, client=server)
        chosen = sorted(int(k) for k in self.choose(rng, sizes, count))
        return Selection(train=chosen, report=chosen)


def check_selection(selection: Selection, population: int, whose: str) -> None:
    """Require that only clients that train report, and that at least one does.

    Args:
        selection: who trains and who reports.
        population: number of clients that could be chosen; they are numbered from 0.
        whose: what selected them, for errors, such as `FedX.select`.
    """
    trained, known = set(selection.train), range(population)
    is_whole = bool(selection.report) and trained.issuperset(selection.report)
    if is_whole and len(trained) == len(selection.train) and min(trained) in known and max(trained) in known:
        return  # before any message is built, which would take long for many servers
    strangers = [k for k in (*selection.train, *selection.report) if not 0 <= k < population]
    require(
        not strangers,
        f"{whose} chose client {next(iter(strangers), '')}, but there are {population} clients, with the numbers 0 to "
        f"{population - 1}. Give numbers from these.",
    )
    require(
        len(set(selection.train)) == len(selection.train),
        f"{whose} chose a client twice. Draw without replacement, or leave the repeated numbers out.",
    )
    idle = sorted(set(selection.report) - set(selection.train))
    require(
        not idle,
        f"{whose} lets client {next(iter(idle), '')} report, which does not train. Put every client of `report` into "
        "`train`.",
    )
    require(
        len(selection.report) > 0,
        f"{whose} lets no client report, so the server would have nothing to average. Return at least one client; in a "
        "Selection(train, report) the second list says who reports.",
    )


class UniformSampler(Sampler):
    """Uniform without replacement."""

    def choose(self, rng: np.random.Generator, sizes: np.ndarray, count: int) -> Sequence[int]:
        """`count` clients, each set equally likely."""
        return list(rng.choice(len(sizes), size=count, replace=False))


class AllSampler(Sampler):
    """All clients, every round."""

    def cohort_size(self, count: int, population: int) -> int:
        """Everyone, whatever `count` says."""
        return population

    def choose(self, rng: np.random.Generator, sizes: np.ndarray, count: int) -> Sequence[int]:
        """Everyone, whatever `count` says."""
        return range(len(sizes))


class SizeSampler(Sampler):
    """Without replacement, with probability proportional to the training samples n_i."""

    def choose(self, rng: np.random.Generator, sizes: np.ndarray, count: int) -> Sequence[int]:
        """`count` clients drawn one after the other, by size among those left."""
        if count > np.count_nonzero(sizes):
            raise ConfigError(
                f"trainer.clients_per_round is {count}, but only {np.count_nonzero(sizes)} clients have training "
                "samples and trainer.sampler 'size' draws no others. Lower clients_per_round."
            )
        return list(rng.choice(len(sizes), size=count, replace=False, p=sizes / sizes.sum()))


class FixedSampler(Sampler):
    """The same list of clients, every round.

    Args:
        clients: ids of the clients that train.
    """

    draws_from_subset = False
    names_clients = True

    def __init__(self, clients: list[int]) -> None:
        if not clients or len(set(clients)) != len(clients) or min(clients) < 0:
            raise ConfigError(f"FixedSampler got clients {clients}; give a list of different ids, each 0 or more.")
        self.clients = clients

    def cohort_size(self, count: int, population: int) -> int:
        """The list, whatever `count` says."""
        return len(self.clients)

    def choose(self, rng: np.random.Generator, sizes: np.ndarray, count: int) -> Sequence[int]:
        """The list, whatever `count` says."""
        if max(self.clients) >= len(sizes):
            raise ConfigError(
                f"FixedSampler names client {max(self.clients)}, but the data have clients 0 to {len(sizes) - 1}. "
                "Leave it out of the list."
            )
        return self.clients


class EarliestSampler(Sampler):
    """The clients that arrive first, by the clock."""

    needs_clock = True

    def select(
        self, seed: int, round: int, sizes: np.ndarray, count: int, *, arrivals: Arrivals = None, server: int = 0
    ) -> Selection:
        """The first `count` to arrive; `order` holds all clients by arrival."""
        order = by_arrival(arrivals)
        chosen = sorted(order[:count])
        return Selection(chosen, chosen, order=[order])


class QuotaSampler(Sampler):
    """The same number of clients from every group: a Sync-cloud, where each server waits for its own clients.

    Args:
        groups: servers among which the clients are divided, in blocks of equal size.
        earliest: take the clients that arrive first, by the clock; at random unless true.
    """

    draws_from_subset = False

    def __init__(self, groups: int, earliest: bool = True) -> None:
        require(groups >= 1, f"QuotaSampler.groups is {groups}; give 1 or more.")
        self.groups = groups
        self.earliest = self.needs_clock = earliest

    def cohort_size(self, count: int, population: int) -> int:
        """`count` clients of every group."""
        return count * self.groups

    def select(
        self, seed: int, round: int, sizes: np.ndarray, count: int, *, arrivals: Arrivals = None, server: int = 0
    ) -> Selection:
        """`count` of every group, in the order of their arrival or at random."""
        blocks = [block for block in np.array_split(np.arange(len(sizes)), self.groups) if len(block)]
        short = min(len(block) for block in blocks)
        require(
            count <= short and len(blocks) == self.groups,
            f"trainer.clients_per_round is {count}, but {len(sizes)} clients in QuotaSampler.groups = "
            f"{self.groups} blocks leave a group of {short if len(blocks) == self.groups else 0}. Lower one of them.",
        )
        rng = generator(seed, Purpose.COHORT, round=round, client=server)
        order = [
            by_arrival(arrivals, block) if self.earliest else [int(k) for k in rng.permutation(block)]
            for block in blocks
        ]
        chosen = sorted(k for group in order for k in group[:count])
        return Selection(chosen, chosen, order=order)


def by_arrival(arrivals: Arrivals, among: np.ndarray | None = None) -> list[int]:
    """Ids by arrival, of all clients or of these; ties go to the lowest id."""
    assert arrivals is not None, "configuration_checks.check_clock"
    first = arrivals.argsort(kind="stable") if among is None else among[arrivals[among].argsort(kind="stable")]
    order: list[int] = first.tolist()
    return order


_BY_NAME: dict[str, type[Sampler]] = {
    "uniform": UniformSampler,
    "all": AllSampler,
    "size": SizeSampler,
    "earliest": EarliestSampler,
}


def find_sampler(sampler: str | Sampler) -> Sampler:
    """A sampler from its name in configs, or itself."""
    if isinstance(sampler, Sampler):
        return sampler
    if sampler not in _BY_NAME:
        raise ConfigError(
            f"trainer.sampler is '{sampler}', which is not a sampler. {nearest(sampler, _BY_NAME)}"
            f"Known: {', '.join(_BY_NAME)}, or the class FixedSampler with its list of clients."
        )
    return _BY_NAME[sampler]()
