"""A command that ends its own process at a chosen moment, as `kill -9` would."""

import os
import shlex
import signal
from importlib import import_module
from itertools import count
from typing import Any, NamedTuple

from fedlit.cli.main import main


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
