"""Clock: which clients report by the deadline, and how long a round lasts. It has options and no state.

    reports   τ_i <= deadline, and the client did not drop out
    duration  max τ_i over clients that report; at least the deadline, if there is one and a client does not report

Readings. A server cannot tell a lost client from a slow one, so with a deadline it waits for both until then. Without a
deadline it notices a loss (a closed connection) and waits only for the others. Every round has a report: if no client
reports in time, the earliest that did not drop out does, however late; if all dropped out, the earliest of all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlit.clock.distributions import Seconds
from fedlit.clock.latency import Latency
from fedlit.errors import require
from fedlit.keys import Purpose, Rounds, uniforms


@dataclass(frozen=True, eq=False)
class Reports:
    """A round in simulated time, for the clients that were asked, in their order."""

    seconds: Seconds
    """(clients,) from the round's start until the model is back, or would be if the client were not lost."""
    reports: NDArray[np.bool_]
    """(clients,): whether the server uses the client's model; at least one is True."""
    duration_s: float
    """Seconds from the round's start until the server steps."""

    @property
    def lasts(self) -> float:
        """The older name of `duration_s`."""
        return self.duration_s


@dataclass(frozen=True)
class Clock:
    """Simulated time of a run.

    Args:
        latency: how long clients take
        deadline: seconds after which a round ends without those who are late; no client is late unless given
        dropout: probability that a client that trains does not report, drawn for each client and round
    """

    latency: Latency = Latency()
    deadline: float | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require(
            self.deadline is None or 0 < self.deadline < np.inf,
            f"trainer.clock.deadline is {self.deadline}. Set it to seconds above 0, or leave it out.",
        )
        require(
            0 <= self.dropout < 1,
            f"trainer.clock.dropout is {self.dropout}. It is a probability: set it to 0 or more and below 1.",
        )

    def report_times(self, seed: int, round: int, clients: ArrayLike, work: ArrayLike) -> Reports:
        """The reports of a round of these clients, with these units of work (`latency.work`)."""
        ids = np.atleast_1d(np.asarray(clients))
        seconds, reports, [duration_s] = self.reports_of(seed, np.full(len(ids), round), ids, work, [len(ids)])
        return Reports(seconds, reports, duration_s)

    def reports_of(
        self,
        seed: int,
        rounds: NDArray[np.int64],
        clients: NDArray[np.int64],
        work: ArrayLike,
        counts: Sequence[int],
        arrivals: Seconds | None = None,
    ) -> tuple[Seconds, NDArray[np.bool_], list[float]]:
        """The same for several servers at once, with `counts` clients each and a round for each client.

        Returns (clients,) seconds, (clients,) whether each reports, and the duration of each server's round. `arrivals`
        are the clients' arrivals, if they were drawn already.
        """
        require(min(counts) > 0, "The clock is asked for a round without clients. Give it at least one.")
        seconds = self.latency.durations(seed, rounds, clients, work, arrivals)
        lost = self.lost(seed, rounds, clients)
        if self.deadline is None and not lost.any():  # all report: no loop over servers, which takes long
            return seconds, ~lost, np.maximum.reduceat(seconds, np.cumsum([0, *counts[:-1]])).tolist()
        each = split_by_counts(seconds, counts)
        reports = [who_reports(*pair, self.deadline) for pair in zip(each, split_by_counts(lost, counts), strict=True)]
        durations = [round_duration_s(*pair, self.deadline) for pair in zip(each, reports, strict=True)]
        return seconds, np.concatenate(reports), durations

    def lost(self, seed: int, round: Rounds, clients: ArrayLike) -> NDArray[np.bool_]:
        """(clients,): whether each client drops out of this round."""
        ids = np.atleast_1d(np.asarray(clients))
        if self.dropout == 0:  # saves the time of a draw
            return np.zeros(len(ids), dtype=np.bool_)
        lost: NDArray[np.bool_] = uniforms(seed, Purpose.ABSENCE, ids, round=round)[:, 0] < self.dropout
        return lost


def split_by_counts(values: NDArray[Any], counts: Sequence[int]) -> list[NDArray[Any]]:
    """Split the values into consecutive parts of these lengths (views); np.split is ten times slower for many parts."""
    ends = accumulate(counts)
    return [values[end - count : end] for end, count in zip(ends, counts, strict=True)]


def who_reports(seconds: Seconds, lost: NDArray[np.bool_], deadline: float | None) -> NDArray[np.bool_]:
    """(clients,): whether each is in time and not lost; at least one is True (Readings, at the head of this file)."""
    in_time = seconds <= (np.inf if deadline is None else deadline)
    reports: NDArray[np.bool_] = in_time & ~lost
    if not reports.any():
        candidates = seconds if lost.all() else np.where(lost, np.inf, seconds)
        reports[np.argmin(candidates)] = True
    return reports


def round_duration_s(seconds: Seconds, reports: NDArray[np.bool_], deadline: float | None) -> float:
    """Seconds until the slowest report; at least until the deadline if a client does not report."""
    slowest = float(seconds[reports].max())
    return slowest if deadline is None or reports.all() else max(slowest, deadline)
