"""A client process: it trains the clients that live in it, with what their server sends them."""

import time

from fedlit.client.cohort import Cohort, TrainedCohort
from fedlit.client.cohort_stack import CohortStack
from fedlit.rounds.nodes.base import PartLoop
from fedlit.rounds.nodes.messages import Message


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
        [cohort] = self.training.train([cohort_of(request)])
        self.wire.send(server, trained_rows(cohort) | {"seconds": time.perf_counter() - started})


_SENT = ("reports", "sizes", "steps", "received", "received_buffers", "state", "sent", "optimizer_state")
_TRAINED = ("steps_taken", "losses", "params", "buffers", "state", "optimizer_state")


def request_of(cohort: Cohort, positions: list[int], wait: float) -> Message:
    """What some clients of a cohort are sent: their rows of it, and the seconds until they show up."""
    part = cohort.take(positions)
    return {
        **{name: getattr(part, name) for name in ("round", "run_round", "population", "clients", "draw_rounds", "lrs")},
        "stacked": {name: getattr(part, name) for name in _SENT},
        "local_tensors": sorted(part.local_tensors),
        "wait": wait,
    }


def cohort_of(request: Message) -> Cohort:
    """The inverse of `request_of`: those clients as a cohort."""
    others = {name: value for name, value in request.items() if name not in ("stacked", "local_tensors", "wait")}
    stack = CohortStack([len(request["clients"])], request["stacked"])
    return Cohort(stack=stack, local_tensors=frozenset(request["local_tensors"]), **others)


def trained_rows(cohort: TrainedCohort) -> Message:
    """What a cohort brings back."""
    return {name: getattr(cohort, name) for name in _TRAINED}
