"""An error as JSON, which another rank raises as its own. Nothing is unpickled, and no class of it is called."""

import builtins
import traceback
from typing import Any

from fedlit import errors
from fedlit.errors import FedlitError

_PLAIN = (str, int, float, bool, type(None))


def to_json(error: BaseException, where: str) -> dict[str, Any]:
    """All that another process needs to raise it; a foreign error brings its traceback, which is there alone.

    Args:
        error: of this process.
        where: who raised it, as a sentence.
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


def from_json(told: dict[str, Any]) -> BaseException:
    """An error of the same class where that is Python's or fedlit's own, else one that names the class."""
    kind = getattr(errors, told["kind"], None) or getattr(builtins, told["kind"], None)
    error: BaseException | None = None
    if isinstance(kind, type) and issubclass(kind, BaseException):
        error = kind.__new__(kind, *told["args"])
        error.args = tuple(told["args"])
        vars(error).update(told["fields"])
    if error is None or str(error) != told["message"]:
        error = _unknown(told)
    if told["note"] is not None:
        error.add_note(told["note"])
    return error


def _unknown(told: dict[str, Any]) -> BaseException:
    """An error of a class that is not known here, or that a copy does not look like."""
    message = f"{told['kind']}: {told['message']}"
    if told["exit_code"] is None:
        return RuntimeError(message)
    error = FedlitError(message)
    error.exit_code = told["exit_code"]
    return error
