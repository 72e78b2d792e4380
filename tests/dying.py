"""What ends the process in which it runs: a callback for servers that are lost, and a command that dies at a moment."""

import os
import shlex
import signal
from importlib import import_module
from itertools import count
from typing import Any, NamedTuple

from fedlit import ServerCallback
from fedlit.cli.main import main


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


class Moment(NamedTuple):
    """When a process kills itself: at the so-many-th call of a function, before it or when it has returned."""

    module: str
    function: str
    call: int
    after: bool = False


def run_until(moment: Moment, words: str) -> None:
    """The command line, in a process that is gone at that moment: nothing is closed, flushed or handled."""
    *owners, name = moment.function.split(".")
    owner: Any = import_module(moment.module)
    for part in owners:
        owner = getattr(owner, part)
    function, calls = getattr(owner, name), count(1)

    def deadly(*args: Any, **options: Any) -> Any:
        is_last = next(calls) == moment.call
        answer = None if is_last and not moment.after else function(*args, **options)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    setattr(owner, name, deadly)
    main(shlex.split(words))
