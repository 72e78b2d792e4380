"""A client process: it trains the clients that live in it, with what their server sends them."""

import time

from torch import Tensor

from fedlit.cloud_processes.base import PartLoop
from fedlit.cloud_processes.wire import Message
from fedlit.cohort import Cohort


class ClientLoop(PartLoop):
    """One advance() is one request of the server."""

    def on_run_start(self) -> None:
        """There is nothing to begin with."""

    def on_advance_start(self) -> None:
        """No hook: rounds are the server's."""

    def on_advance_end(self) -> None:
        """No hook either."""

    def advance(self) -> None:
        """Train those who are asked for, once all have shown up."""
        server = self.plan.rank_of(self.part.server)
        request = self.wire.receive(server)
        started = time.perf_counter()
        time.sleep(request["wait"])
        cohort = self.training.train([cohort_of(request)])
        self.wire.send(server, trained_rows(cohort) | {"seconds": time.perf_counter() - started})


def request_of(cohort: Cohort, positions: list[int], wait: float) -> Message:
    """What some clients of a cohort are sent: their rows of it, and the seconds until they show up."""
    stacked = ("received", "received_buffers", "state", "sent", "memory")
    return {
        **{name: getattr(cohort, name)[positions] for name in ("reports", "sizes", "steps")},
        **{name: {key: rows(value, positions) for key, value in getattr(cohort, name).items()} for name in stacked},
        **{name: getattr(cohort, name) for name in ("round", "number", "population", "lr")},
        "clients": [cohort.clients[k] for k in positions],
        "own": sorted(cohort.own),
        "wait": wait,
    }


def rows(value: Tensor, positions: list[int]) -> Tensor:
    """Some rows of a stacked tensor; where all are the same memory, they stay so."""
    return value[: len(positions)] if value.stride(0) == 0 else value[positions]


def cohort_of(request: Message) -> Cohort:
    """The inverse of `request_of`: those clients as a cohort."""
    given = {name: value for name, value in request.items() if name not in ("own", "wait")}
    return Cohort(**given, own=frozenset(request["own"]))


def trained_rows(cohort: Cohort) -> Message:
    """What a cohort brings back."""
    return {name: getattr(cohort, name) for name in ("taken", "losses", "params", "buffers", "state", "memory")}
