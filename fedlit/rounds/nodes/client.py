"""A client process: it trains its clients with what their server sends."""

import time

from fedlit.client.cohort import Cohort, TrainedCohort
from fedlit.client.cohort_stack import CohortStack
from fedlit.rounds.nodes.base import NodeLoop
from fedlit.rounds.nodes.messages import Message


class ClientLoop(NodeLoop):
    """The loop of a client process; one advance() answers one request of the server."""

    def on_run_start(self) -> None:
        """Nothing: the run begins with the first request."""

    def on_advance_start(self) -> None:
        """Nothing: the server's process calls the hooks of a round."""

    def on_advance_end(self) -> None:
        """Nothing: the server's process calls the hooks of a round."""

    def advance(self) -> None:
        """Train the requested clients, after the wait until all of them have arrived."""
        server = self.plan.rank_of(self.part.server)
        request = self.wire.receive(server)
        started = time.perf_counter()
        time.sleep(request["wait"])
        [cohort] = self.parts.training.train([cohort_of(request)])
        self.wire.send(server, trained_rows(cohort) | {"seconds": time.perf_counter() - started})


_SENT = ("reports", "sizes", "steps", "received", "received_buffers", "state", "sent", "optimizer_state")
_MEASURED = ("risk_received", "grad_received")
_TRAINED = ("steps_taken", "losses", "params", "buffers", "state", "optimizer_state", "reported_rows")


def request_of(cohort: Cohort, positions: list[int], wait: float) -> Message:
    """The request to train some clients of a cohort: their rows, and the seconds until all of them have arrived."""
    part = cohort.take(positions)
    return {
        **{name: getattr(part, name) for name in ("round", "run_round", "population", "clients", "draw_rounds", "lrs")},
        "stacked": {name: value for name, value in part.filled().items() if name in (*_SENT, *_MEASURED)},
        "local_tensors": sorted(part.local_tensors),
        "wait": wait,
    }


def cohort_of(request: Message) -> Cohort:
    """The inverse of `request_of`: these clients as a cohort."""
    others = {name: value for name, value in request.items() if name not in ("stacked", "local_tensors", "wait")}
    stack = CohortStack([len(request["clients"])], request["stacked"])
    return Cohort(stack=stack, local_tensors=frozenset(request["local_tensors"]), **others)


def trained_rows(cohort: TrainedCohort) -> Message:
    """The rows that a trained cohort sends back."""
    return {name: getattr(cohort, name) for name in _TRAINED}
