"""An error as JSON, which another rank can raise as its own. Nothing is unpickled, and no constructor is called."""

import builtins
import traceback
from typing import Any

from fedlit import errors
from fedlit.errors import FedlitError

_PLAIN = (str, int, float, bool, type(None))


def to_json(error: BaseException, where: str) -> dict[str, Any]:
    """All that another process needs to raise the error; one that is not fedlit's also brings its traceback.

    Args:
        error: an error of this process.
        where: a sentence that says which process raised it.
    """
    is_ours = isinstance(error, FedlitError)
    return {
        "kind": type(error).__name__,
        "message": str(error),
        "args": [part for part in error.args if isinstance(part, _PLAIN)],
        "fields": {name: value for name, value in vars(error).items() if isinstance(value, _PLAIN)},
        "exit_code": error.exit_code if isinstance(error, FedlitError) else None,
        "note": None if is_ours else f"{where}\n{''.join(traceback.format_exception(error))}",
    }


def from_json(record: dict[str, Any]) -> BaseException:
    """The error again, if its class is Python's or fedlit's; else an error that names the class."""
    kind = getattr(errors, record["kind"], None) or getattr(builtins, record["kind"], None)
    error: BaseException | None = None
    if isinstance(kind, type) and issubclass(kind, BaseException):
        error = kind.__new__(kind, *record["args"])
        error.args = tuple(record["args"])
        vars(error).update(record["fields"])
    if error is None or str(error) != record["message"]:
        error = _unknown(record)
    if record["note"] is not None:
        error.add_note(record["note"])
    return error


def _unknown(record: dict[str, Any]) -> BaseException:
    """The error for a class that is not known here, or whose copy would have another text."""
    message = f"{record['kind']}: {record['message']}"
    if record["exit_code"] is None:
        return RuntimeError(message)
    error = FedlitError(message)
    error.exit_code = record["exit_code"]
    return error
