"""A callback that ends the process in which it runs, for tests of servers that are lost."""

import os
import signal
from typing import Any

from fedlit import ServerCallback


class Dies(ServerCallback):
    """Ends a server in its second round, as `kill -9` would.

    Args:
        hook: in which hook.
        server: which one.
    """

    def __init__(self, hook: str, server: int = 1) -> None:
        self.hook = hook
        self.dying = server

    def on_cohort_start(self, *given: Any) -> None:
        self._end("on_cohort_start")

    def on_cohort_trained(self, *given: Any) -> None:
        self._end("on_cohort_trained")

    def on_server_step_end(self, *given: Any) -> None:
        self._end("on_server_step_end")

    def _end(self, hook: str) -> None:
        if hook == self.hook and self.server.id == self.dying and self.server.rounds == 1:
            os.kill(os.getpid(), signal.SIGKILL)
