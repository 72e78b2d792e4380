"""Seconds of every exchange by phase, and the memory of processes: what `--timings` prints at the end of a run."""

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

_PHASES = ("total", "flower", "relay", "work")


@dataclass(frozen=True)
class Timing:
    """One answer of one node, in seconds."""

    kind: str
    node: str
    total: float
    """Until the answer was at the server."""
    relay: float
    """To fetch the message from the SuperNode."""
    work: float
    """Of the worker."""

    @property
    def flower(self) -> float:
        """The rest: Flower carries the message and the answer, and waits until somebody asks for them."""
        return self.total - self.relay - self.work


class Timings:
    """The timings of a run."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        """When the command was started."""
        self.first_answer: float | None = None
        """Seconds from the beginning to the first answer to a message that trains."""
        self.each: list[Timing] = []

    def add(self, kind: str, node: str, seconds: Mapping[str, float]) -> None:
        """Add an answer of a node, with its seconds by phase."""
        if kind == "train" and self.first_answer is None:
            self.first_answer = time.monotonic() - self.began
        self.each.append(Timing(kind, node, seconds["total"], seconds["relay"], seconds["work"]))

    def lines(self) -> Iterator[str]:
        """A table: the median of every phase, for each kind of message."""
        yield f"{'seconds of an answer':<22}{'answers':>8}" + "".join(f"{phase:>9}" for phase in _PHASES)
        for kind in dict.fromkeys(one.kind for one in self.each):
            those = [one for one in self.each if one.kind == kind]
            middle = [median(getattr(one, phase) for one in those) for phase in _PHASES]
            yield f"{kind:<22}{len(those):>8}" + "".join(f"{value:>9.2f}" for value in middle)
        if self.first_answer is not None:
            yield f"{self.first_answer:.1f} s from the start of the command to the first model that came back"


def memory_lines(processes: Sequence[tuple[str, int]]) -> Iterator[str]:
    """A table of the memory of processes, each with those that it has started and that have no line; Linux only.

    Args:
        processes: name and number of each.
    """
    if not Path("/proc/self/smaps_rollup").exists():
        return
    yield f"{'memory in MB':<30}{'its own':>9}{'with what is shared':>21}{'processes':>11}"
    for name, number in processes:
        family = family_of(number, {other for _, other in processes} - {number})
        own, resident = (sum(column) for column in zip(*(memory_of(one) for one in family), strict=True))
        yield f"{name:<30}{own:>9.0f}{resident:>21.0f}{len(family):>11}"


def family_of(number: int, others: Collection[int]) -> list[int]:
    """A process and all its descendants, without these others and theirs."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it has ended
                continue
    family = [number]
    for one in family:  # grows while it is walked
        family += [child for child, parent in parents.items() if parent == one and child not in others]
    return family


def memory_of(number: int) -> tuple[float, float]:
    """Megabytes of a process: its private pages, and all that are resident; zeros if it has ended."""
    try:
        rows = [line.split() for line in Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()]
    except OSError:
        return 0.0, 0.0
    sizes = {row[0]: float(row[1]) / 1024 for row in rows if row[0].endswith(":") and row[-1] == "kB"}
    return sizes["Private_Clean:"] + sizes["Private_Dirty:"], sizes["Rss:"]


def this_process() -> tuple[str, int]:
    """This one, under the name of what it does."""
    return "fedlit", os.getpid()
