"""What can go wrong, as one tree. A message is one paragraph: what is wrong, where, and what to do.

FedlitError
├── ConfigError     an option, or two options together, make no sense            exit code 2
├── DataError       a data set is missing, damaged or cannot be split as asked   exit code 2
├── RunError        a run folder cannot be created, read or written              exit code 2
│   └── ResumeError a run cannot be continued from what its folder holds         exit code 2
├── ProcessError    a process of a cloud ended, failed or is silent              exit code 1
├── RankError       a process of the run was killed, hangs or did not come       exit code 1
└── DivergedError   training left the finite numbers                             exit code 1
"""

import difflib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


class FedlitError(Exception):
    """The root: everything that fedlit raises on purpose."""

    exit_code = 2


class ConfigError(FedlitError):
    """An option has a value that makes no sense, alone or together with another."""


class DataError(FedlitError):
    """A data set is missing, damaged, or cannot be split as asked."""


class RunError(FedlitError):
    """A run folder cannot be created, read or written."""


class ResumeError(RunError):
    """A run cannot be continued from what its folder holds."""


class ProcessError(FedlitError):
    """A process that a run needs has ended, has failed, or is silent."""

    exit_code = 1


class RankError(FedlitError):
    """One of the processes of a run was killed, hangs, or did not come."""

    exit_code = 1


class DivergedError(FedlitError):
    """A client's loss or weights are not finite, or the mean risk exploded."""

    exit_code = 1

    def __init__(self, message: str, *, round: int, client: int | None) -> None:
        super().__init__(message)
        self.round = round
        self.client = client


@contextmanager
def located(where: str | Callable[[], str]) -> Iterator[None]:
    """Let every error that leaves the block say where it came from; its type stays, so that `except` finds it.

    fedlit's own errors say it in their message, others in a note below their traceback. A DivergedError names its round
    and client already.

    Args:
        where: what completes "This happened …": "in round 3, client 7, local step 12 (training_step)"; or a function
            that says it, where words would cost time in every pass.
    """
    try:
        yield
    except DivergedError:
        raise
    except FedlitError as error:
        error.args = (f"{error} {_happened(where)}", *error.args[1:])
        raise
    except Exception as error:
        error.add_note(_happened(where))
        raise


def _happened(where: str | Callable[[], str]) -> str:
    return f"This happened {where if isinstance(where, str) else where()}."


def nearest(name: str, known: Iterable[str]) -> str:
    """`Did you mean 'x'? ` for a mistyped name, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"Did you mean '{close[0]}'? " if close else ""


def require(condition: bool, message: str) -> None:
    """Raise ConfigError(message) unless the condition holds; for the checks of constructors."""
    if not condition:
        raise ConfigError(message)
