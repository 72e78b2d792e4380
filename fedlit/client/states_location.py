"""Where the rows of clients have room: in memory, or on disk (`trainer.states`)."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedlit.errors import ConfigError, RunError

StatesPlace = Literal["auto", "memory", "disk"]
SHARE = 1 / 8
"""Of the memory, that rows may take with `auto`. They grow by doubling, and a checkpoint copies them twice."""
_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class Need:
    """What rows would take, and what there is for them."""

    clients: int
    """Who may take part at most."""
    row_bytes: float
    """Of one client."""
    processes: int
    """On one machine; each has all rows in its memory."""
    why_not_on_disk: str | None
    """Why rows cannot be on disk."""

    @property
    def bytes(self) -> float:
        """In memory."""
        return self.clients * self.row_bytes * self.processes


def on_disk(asked: StatesPlace, need: Need) -> tuple[bool, str | None]:
    """Whether whole models are kept on disk, and a line that says why, where there is something to say."""
    if asked != "auto":
        return asked == "disk", None
    room = memory_bytes()
    if need.bytes <= SHARE * room:
        return False, None
    each = f" in each of {need.processes} processes" if need.processes > 1 else ""
    size = (
        f"rows of {need.clients:,} clients may take {need.bytes / need.processes / 1e9:.1f} GB{each}, more than an "
        f"eighth of the {room / 1e9:.1f} GB of memory"
    )
    if need.why_not_on_disk is not None:
        return False, f"states: memory, although {size}: {need.why_not_on_disk}"
    return True, f"states: disk ({size})"


def check_asked(asked: StatesPlace, why_not_on_disk: str | None) -> None:
    """Refuse rows on disk where there is no place for them."""
    if asked == "disk" and why_not_on_disk is not None:
        raise ConfigError(f"trainer.states is disk, but {why_not_on_disk} Otherwise set trainer.states to memory.")


def why_not_on_disk(folder: Path | None, machines: int) -> str | None:
    """Why rows cannot be on disk; None where they can."""
    if folder is None:
        return "this run has no folder. Give one with trainer.run (--run DIR)."
    if machines > 1:
        return "the run has several machines, and only one has its folder. Run it on one machine."
    return None


def memory_bytes() -> int:
    """Of this machine, or of the part of it that this process may use."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _LIMIT.read_text().strip() if _LIMIT.is_file() else ""
    return min(total, int(limit)) if limit.isdigit() else total


def check_room(rows_bytes: int) -> None:
    """Refuse a checkpoint with all rows in it where memory cannot hold them."""
    if 3 * rows_bytes > memory_bytes():  # the rows, and Lightning's copy of the whole file
        raise RunError(
            f"A checkpoint beside those of the run folder would hold the rows of all clients ({rows_bytes / 1e9:.1f} "
            "GB), for which this machine's memory is too small. Leave it out: the run folder's own checkpoints have "
            "the rows beside them."
        )
