"""A callback that ends the process in which it runs, for tests of servers that are lost."""

import os
import signal
from typing import Any

from fedlit import ServerCallback


class Dies(ServerCallback):
    """Ends server 1 in one of its rounds, as `kill -9` would.

    Args:
        hook: in which hook.
        round: in which round of the server, from 0 on.
    """

    def __init__(self, hook: str, round: int = 1) -> None:
        self.hook = hook
        self.round = round

    def on_cohort_start(self, *given: Any) -> None:
        self._end("on_cohort_start")

    def on_cohort_trained(self, *given: Any) -> None:
        self._end("on_cohort_trained")

    def on_server_step_end(self, *given: Any) -> None:
        self._end("on_server_step_end")

    def _end(self, hook: str) -> None:
        if hook == self.hook and self.server.id == 1 and self.server.rounds == self.round:
            os.kill(os.getpid(), signal.SIGKILL)
