"""A client process: it trains its clients with what their server sends."""

import time

from fedlit.client.cohort_messages import cohort_of, trained_rows
from fedlit.rounds.nodes.base import NodeLoop


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
