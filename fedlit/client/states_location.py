"""Whether the rows of clients are kept in memory or on disk (`trainer.states`)."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedlit.errors import ConfigError, RunError

StatesPlace = Literal["auto", "memory", "disk"]
SHARE = 1 / 8
"""Share of the memory that rows may take with `auto`. A checkpoint copies them twice."""
_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class Need:
    """How much memory the rows would need, and why they cannot be on disk."""

    clients: int
    """Clients that take part, at most."""
    row_bytes: float
    """Bytes of one client's rows."""
    processes: int
    """Processes on one machine; each has all rows in its memory."""
    why_not_on_disk: str | None
    """Why rows cannot be on disk; None if they can."""

    @property
    def bytes(self) -> float:
        """Bytes that all rows would take in memory."""
        return self.clients * self.row_bytes * self.processes

    @property
    def is_small(self) -> bool:
        """Whether they are a small part of the memory."""
        return self.bytes <= SHARE * memory_bytes()


def on_disk(asked: StatesPlace, need: Need) -> tuple[bool, str | None]:
    """Whether whole models are kept on disk, and a line for the log if `auto` has to explain its choice."""
    if asked != "auto":
        return asked == "disk", None
    if need.is_small:
        return False, None
    available = memory_bytes()
    each = f" in each of {need.processes} processes" if need.processes > 1 else ""
    size = (
        f"rows of {need.clients:,} clients may take {need.bytes / need.processes / 1e9:.1f} GB{each}, more than an "
        f"eighth of the {available / 1e9:.1f} GB of memory"
    )
    if need.why_not_on_disk is not None:
        return False, f"states: memory, although {size}: {need.why_not_on_disk}"
    return True, f"states: disk ({size})"


def check_asked(asked: StatesPlace, why_not_on_disk: str | None) -> None:
    """Refuse `trainer.states: disk` if rows cannot be on disk."""
    if asked == "disk" and why_not_on_disk is not None:
        raise ConfigError(f"trainer.states is disk, but {why_not_on_disk} Otherwise set trainer.states to memory.")


def why_not_on_disk(folder: Path | None, machines: int) -> str | None:
    """Why rows cannot be on disk; None if they can."""
    if folder is None:
        return "this run has no folder. Give one with trainer.run (--run DIR)."
    if machines > 1:
        return "the run has several machines, and only one has its folder. Run it on one machine."
    return None


def memory_bytes() -> int:
    """Memory of this machine, or the part of it that this process may use."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _LIMIT.read_text().strip() if _LIMIT.is_file() else ""
    return min(total, int(limit)) if limit.isdigit() else total


def check_room(rows_bytes: int) -> None:
    """Refuse a checkpoint that holds all rows if memory is too small for them."""
    if 3 * rows_bytes > memory_bytes():  # the rows, and Lightning's copy of the whole file
        raise RunError(
            f"A checkpoint beside those of the run folder would hold the rows of all clients ({rows_bytes / 1e9:.1f} "
            "GB), for which this machine's memory is too small. Leave it out: the run folder's own checkpoints have "
            "the rows beside them."
        )
