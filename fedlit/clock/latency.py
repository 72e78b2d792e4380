"""Latency: how long a client takes in a round, as keyed draws.

    arrival    τ_arr,i                                      until the client shows up
    duration   τ_i = τ_arr,i + P_i / speed_i + down_i + up_i
    product    P_i = K_i τ_proc,i                           one draw for a client and round (FedBCD, section 5)
    sum        P_i = τ_proc,i,1 + … + τ_proc,i,K_i          a draw of its own for each unit of work

Draws are keyed by (seed, round, client); the speed, which is the same in all rounds, by (seed, client). So a client's
seconds do not depend on the order or the choice of the other clients, and nothing has to be saved for resume.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlit.clock.distributions import Constant, Distribution, Exponential, Seconds
from fedlit.errors import ConfigError, require
from fedlit.keys import Purpose, Rounds


@dataclass(frozen=True)
class Latency:
    """How long clients take, in seconds; the defaults are those of the FedBCD paper.

    Args:
        arrival: τ_arr: seconds from the round's start until a client shows up
        compute: τ_proc: seconds for a unit of work, at speed 1
        per: what a unit of work is: a local step, an epoch of the client's own data, or the whole round
        processing: product draws once for a client and round, and multiplies; sum draws for each unit
        network: seconds for a model's way, drawn for the way down and again for the way up
        speed: how fast a client computes, drawn once for each client and kept; 1 for all unless given
    """

    arrival: Distribution = Exponential(2.0)
    compute: Distribution = Exponential(1.0)
    per: Literal["local_step", "epoch", "round"] = "local_step"
    processing: Literal["product", "sum"] = "product"
    network: Distribution = Constant(0.0)
    speed: Distribution | None = None

    def __post_init__(self) -> None:
        require(
            self.per in ("local_step", "epoch", "round"),
            f"Latency.per is {self.per!r}. Set it to local_step, epoch or round.",
        )
        require(
            self.processing in ("product", "sum"),
            f"Latency.processing is {self.processing!r}. Set it to product or sum.",
        )
        require(
            self.processing == "product" or not self.compute.is_recorded,
            "Latency.processing is 'sum', but Latency.compute is a Trace, which has one number for a round and client. "
            "Set processing to product, or compute to a distribution.",
        )

    def work(self, steps: ArrayLike, steps_per_epoch: ArrayLike) -> NDArray[np.float64]:
        """(clients,): units of work in these numbers of local steps; a part of an epoch counts as its share."""
        counts = np.asarray(steps, dtype=np.float64)
        if self.per == "local_step":
            return counts
        if self.per == "epoch":
            return counts / np.maximum(np.asarray(steps_per_epoch, dtype=np.float64), 1)
        return (counts > 0).astype(np.float64)

    def arrivals(self, seed: int, round: Rounds, clients: ArrayLike) -> Seconds:
        """(clients,): seconds until each client arrives."""
        return self._drawn("arrival", seed, Purpose.ARRIVAL, round, clients)

    def durations(
        self, seed: int, round: Rounds, clients: ArrayLike, work: ArrayLike, arrivals: Seconds | None = None
    ) -> Seconds:
        """(clients,): seconds from the round's start until each client's model is back, for these units of work.

        `arrivals` are the clients' arrivals, if they were drawn already.
        """
        ids = np.atleast_1d(np.asarray(clients))
        round = np.broadcast_to(np.asarray(round), ids.shape)
        units = _checked_work(work, len(ids))
        add_up = self._product if self.processing == "product" else self._sum
        ways = (self._drawn("network", seed, Purpose.NETWORK, round, ids, index=way) for way in (0, 1))
        computing = add_up(seed, round, ids, units) / self.speeds(seed, ids)
        arrivals = self.arrivals(seed, round, ids) if arrivals is None else arrivals
        return arrivals + computing + sum(ways)

    def speeds(self, seed: int, clients: ArrayLike) -> NDArray[np.float64]:
        """(clients,): the clients' speeds, the same in all rounds; a trace of speeds holds them as round 1."""
        ids = np.atleast_1d(np.asarray(clients))
        if self.speed is None:
            return np.ones(len(ids))
        drawn = self.speed.draw(seed, Purpose.SPEED, 0, ids)
        bad = ~((drawn > 0) & np.isfinite(drawn))
        if bad.any():
            raise ConfigError(
                f"Latency.speed gives client {ids[bad][0]} the speed {drawn[bad][0]:g}, with which it never finishes. "
                "Choose a distribution of finite numbers above 0."
            )
        return drawn

    @property
    def is_recorded(self) -> bool:
        """Whether any part is a trace, which may be shorter than the run."""
        parts = (self.arrival, self.compute, self.network, self.speed)
        return any(part is not None and part.is_recorded for part in parts)

    @property
    def is_constant(self) -> bool:
        """Whether every client takes equally long in every round, for any work."""
        same = isinstance(self.arrival, Constant) and isinstance(self.network, Constant)
        free = isinstance(self.compute, Constant) and (self.per == "round" or self.compute.value == 0)
        return same and free and (self.speed is None or isinstance(self.speed, Constant))

    def _product(self, seed: int, round: Rounds, clients: NDArray[np.int64], work: NDArray[np.float64]) -> Seconds:
        return work * self._drawn("compute", seed, Purpose.COMPUTE, round, clients)

    def _drawn(
        self, name: str, seed: int, purpose: Purpose, round: Rounds, clients: ArrayLike, index: int = 0
    ) -> Seconds:
        """One number for each client, of the distribution of this name."""
        distribution: Distribution = getattr(self, name)
        return checked_seconds(name, distribution, distribution.draw(seed, purpose, round, clients, index))

    def _sum(
        self, seed: int, round: NDArray[np.int64], clients: NDArray[np.int64], work: NDArray[np.float64]
    ) -> Seconds:
        """Draw four units at a time for clients that still work; a last partial unit counts as its share."""
        seconds = np.zeros(len(clients))
        for block in range(int(np.ceil(work.max(initial=0) / 4))):
            busy = np.flatnonzero(work > 4 * block)
            done = np.clip(work[busy, None] - 4 * block - np.arange(4), 0, 1)
            drawn = self.compute.draw_four(seed, Purpose.COMPUTE, round[busy], clients[busy], block)
            checked_seconds("compute", self.compute, drawn)
            seconds[busy] += (done * drawn).sum(axis=1)
        return seconds


def checked_seconds(name: str, distribution: Distribution, seconds: Seconds) -> Seconds:
    """The seconds, or ConfigError if a user's distribution gave negative or infinite ones."""
    good = np.isfinite(seconds) & (seconds >= 0)
    require(
        bool(good.all()),
        f"Latency.{name} is {type(distribution).__name__}, which gave {seconds[~good][:1]} seconds. Seconds must be "
        "finite and 0 or more: mend its quantile.",
    )
    return seconds


def _checked_work(work: ArrayLike, clients: int) -> NDArray[np.float64]:
    units = np.broadcast_to(np.asarray(work, dtype=np.float64), clients)
    bad = units[~(np.isfinite(units) & (units >= 0))]
    require(len(bad) == 0, f"A client's work is {bad[:1]} units. It must be finite and 0 or more.")
    return units
