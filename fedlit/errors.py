"""What can go wrong, as one tree. A message is one paragraph: what is wrong, where, and what to do.

FedlitError
├── ConfigError     an option, or two options together, make no sense            exit code 2
├── DataError       a data set is missing, damaged or cannot be split as asked   exit code 2
├── RunError        a run folder cannot be created, read or written              exit code 2
│   └── ResumeError a run cannot be continued from what its folder holds         exit code 2
│       └── DamagedRowsError  a file with rows of clients is damaged             exit code 2
├── MessageError    a message of another process or machine makes no sense       exit code 1
├── ProcessError    a process of a cloud ended, failed or is silent              exit code 1
├── RankError       a process of the run was killed, hangs or did not come       exit code 1
└── DivergedError   training left the finite numbers                             exit code 1
"""

import difflib
import errno
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_FULL = "the disk is full. Free some space and continue with --resume"
_READ_ONLY = "it is read-only for this user. Make it writable and continue with --resume, or choose another --run DIR"
_NO_FOLDER = "a file is where a folder should be. Move it away, or choose another folder with --run DIR"
_TOO_LONG = "the name is too long for the file system. Choose a shorter one with --run DIR"
_NOWHERE = "its folder is gone, or cannot be made there. Choose another folder with --run DIR"
_REASONS = (
    dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _FULL)
    | dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _READ_ONLY)
    | dict.fromkeys((errno.ENOTDIR, errno.EEXIST), _NO_FOLDER)
    | {errno.ENAMETOOLONG: _TOO_LONG, errno.ENOENT: _NOWHERE}
)

_SHOWN = 6
"""Keys that a message lists; a deep net has hundreds."""


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


class DamagedRowsError(ResumeError):
    """A file with rows of clients has another content than was written."""

    def __init__(self, file: Path, what: str) -> None:
        super().__init__(
            f"{file} is damaged: {what}. --resume continues from the newest checkpoint whose rows are whole, if there "
            "is one. Otherwise restore the file from a copy, or start the run anew with --overwrite."
        )
        self.file = file
        self.what = what


class MessageError(FedlitError):
    """What another process or machine has sent cannot be read, or does not fit."""

    exit_code = 1


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
    """Add to every error that leaves the block where it happened; its type stays, so that `except` still catches it.

    In fedlit's own errors this is part of the message, in others a note below the traceback. A DivergedError names its
    round and client already.

    Args:
        where: the end of the sentence "This happened …": "in round 3, client 7, local step 12 (training_step)"; or a
            function that returns it, where making the text would cost time in every pass.
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
        if isinstance(error, KeyError) and (keys := _keys_at_hand(error)):
            error.add_note(keys)
        raise


@contextmanager
def noted(error: BaseException, when: str) -> Iterator[None]:
    """Run one clean-up step after an error: what the step raises becomes a note on that error, and nothing stops."""
    try:
        yield
    except BaseException as other:  # the first error is the one that will be raised
        error.add_note(f"{when}, this was raised too: {type(other).__name__}: {other}")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn a full disk, a read-only place, a file in the way and the like into a RunError that says what to do."""
    try:
        yield
    except OSError as error:
        other = f"the system says '{error.strerror or error}'. Choose another folder with --run DIR"
        reason = _REASONS.get(error.errno or 0, other)
        raise RunError(
            f"{path} cannot be written: {reason}; the last complete checkpoint, if there is one, is untouched."
        ) from error


@contextmanager
def understood(checkpoint: object) -> Iterator[None]:
    """Around objects that are built from a checkpoint: any failure means content of another form, a ResumeError."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, AssertionError) as error:
        raise ResumeError(
            f"{checkpoint} is not a checkpoint of this run: it cannot be understood ({type(error).__name__}: "
            f"{' '.join(str(error).split())}). Restore it from a copy, or start the run anew with --overwrite."
        ) from error


def _happened(where: str | Callable[[], str]) -> str:
    return f"This happened {where if isinstance(where, str) else where()}."


def _keys_at_hand(error: KeyError) -> str:
    """List the keys of `cohort.state` and `cohort.sent` where the error arose: whole models have long keys."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if "cohort" in frame.f_locals]
    cohort = frames[-1].f_locals["cohort"] if frames else None
    fields = {name: list(getattr(cohort, name, ())) for name in ("state", "sent")}
    shown = {name: [*keys[:_SHOWN], *(["…"] if len(keys) > _SHOWN else [])] for name, keys in fields.items() if keys}
    return " ".join(f"cohort.{name} has the keys {', '.join(keys)}." for name, keys in shown.items())


def nearest(name: str, known: Iterable[str]) -> str:
    """`Did you mean 'x'? ` for a mistyped name, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"Did you mean '{close[0]}'? " if close else ""


def require(condition: bool, message: str) -> None:
    """Raise ConfigError(message) unless the condition holds; for the checks of constructors."""
    if not condition:
        raise ConfigError(message)
