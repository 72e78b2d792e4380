"""The measured tables of a page: `python -m benchmarks.page PAGE JSON ...`, from files of `--json`.

A table stands between `<!-- measured: NAME -->` and `<!-- end -->`; all else on the page is left as it is.
"""

import argparse
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.growth import FAMILIES, GROWTH, Family, Point
from benchmarks.workloads import WORKLOADS
from fedlit.errors import ConfigError, require

MARKED = re.compile(r"(<!-- measured: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
VOID = "Figures with a * had no repetition without other load: they are not to be trusted."
TRUSTED_FACTOR = 2.0
"""How far an estimate of `auto` may be from what is measured."""
OWN = ("handwritten", "sequential", "vectorized", "fedbc", "fit")
"""Entries of one process of fedlit; all others are peers."""
HEADS = {"plain": "hand-written, all cores", "fedjax": "FedJAX", "pfl": "pfl", "flower": "Flower"}
"""Peers for people."""

Entry = dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """What the files hold, together."""

    machines: list[str]
    workloads: dict[str, list[Entry]]
    same_work: dict[str, dict[str, dict[str, Any]]]

    @classmethod
    def read(cls, files: Sequence[Path]) -> "Measured":
        """All files; a workload may be in one of them only."""
        runs = {file: read(file) for file in files}
        workloads: dict[str, list[Entry]] = {}
        for file, run in runs.items():
            twice = [name for name in run["workloads"] if name in workloads]
            require(not twice, f"{file} measures {', '.join(twice)} again. Give one file for each workload.")
            workloads |= run["workloads"]
        machines = [f"{file.name}: {told(run)}" for file, run in runs.items()]
        same_work = {name: seen for run in runs.values() for name, seen in run.get("same_work", {}).items()}
        order = {name: place for place, name in enumerate(WORKLOADS)}
        in_order = sorted(workloads, key=lambda name: order.get(name, len(order)))
        return cls(machines, {name: workloads[name] for name in in_order}, same_work)

    def of(self, name: str, entry: str) -> Entry | None:
        """An entry of a workload; that with the most threads where there are several."""
        found = [one for one in self.workloads.get(name, []) if one["name"] == entry]
        return max(found, key=lambda one: int(one["threads"]), default=None)

    def peers(self) -> list[str]:
        """Names of other frameworks, in the order in which they were given."""
        seen = (one["name"] for name in self.same_work for one in self.workloads[name])
        return list(dict.fromkeys(name for name in seen if name not in OWN))


def read(file: Path) -> dict[str, Any]:
    """What `python -m benchmarks --json` wrote."""
    try:
        run = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read ({error}). Give files of python -m benchmarks --json.") from None
    missing = {"machine", "versions", "repeats", "workloads"} - set(run)
    require(not missing, f"{file} has no {', '.join(sorted(missing))}. Give files of python -m benchmarks --json.")
    return dict(run)


def told(run: dict[str, Any]) -> str:
    """What a file was measured with, in a line."""
    machine, versions = run["machine"], run["versions"]
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_mb'] / 1024:.0f} GB, "
        f"fedlit {versions['fedlit']}, torch {versions['torch']}, Python {versions['python']}, "
        f"median of {run['repeats']} repetitions"
    )


# ---- the tables ------------------------------------------------------------------------------------------------------


def machines(measured: Measured) -> list[str]:
    """Where each file comes from."""
    return [f"- {line}" for line in measured.machines]


def engines(measured: Measured) -> list[str]:
    """Every engine beside the hand-written loop."""
    rows = [
        [titled(name), *(rate(one) for one in entries[:1]), *(ratio(one) for one in by_engine(entries))]
        for name, entries in measured.workloads.items()
        if name in WORKLOADS and WORKLOADS[name].servers == 1
    ]
    return table(["", "hand-written, steps/s", "sequential", "vectorized, 1 worker", "vectorized, all cores"], rows)


def clouds(measured: Measured) -> list[str]:
    """Many servers beside one."""
    rows = [
        [titled(name), rate(entries[0]), rate(entries[1]), ratio(entries[1])]
        for name, entries in measured.workloads.items()
        if name in WORKLOADS and WORKLOADS[name].servers > 1
    ]
    return table(["", "one server, steps/s", "many, steps/s", "many / one"], rows)


def peers(measured: Measured) -> list[str]:
    """Other frameworks beside fedlit: ratios to the hand-written loop of the same repetition."""
    names = measured.peers()
    rows = [
        [
            titled(name),
            rate(entries[0]),
            *(ratio(measured.of(name, who)) for who in ("sequential", "vectorized", *names)),
        ]
        for name, entries in measured.workloads.items()
        if name in measured.same_work
    ]
    heads = [HEADS.get(name, name) for name in names]
    return table(["", "hand-written, steps/s", "fedlit sequential", "fedlit vectorized", *heads], rows)


def same_work(measured: Measured) -> list[str]:
    """Steps and fall of the training loss after the compared rounds, and the versions."""
    names = ["handwritten", "vectorized", *measured.peers()]
    rows = [
        [
            name,
            f"{seen['handwritten']['steps']:,}",
            *(f"{seen[who]['fall']:.4g}" if who in seen else "" for who in names),
        ]
        for name, seen in measured.same_work.items()
    ]
    versions = {one["version"]: None for seen in measured.same_work.values() for one in seen.values() if one["version"]}
    heads = ["hand-written", "fedlit vectorized", *(HEADS.get(name, name) for name in names[2:])]
    return [*table(["", "steps", *heads], rows), "", *(f"- {version}" for version in versions)]


def auto(measured: Measured) -> list[str]:
    """What `auto` expects of the sequential engine beside what was measured."""
    both = [(name, one) for name in measured.workloads if (one := measured.of(name, "sequential")) is not None]
    rows = [
        [titled(name), rate(one), f"{one['estimated_steps_per_s']:,.0f}", f"{factor(one):.2f}"] for name, one in both
    ]
    far = sum(not 1 / TRUSTED_FACTOR <= factor(one) <= TRUSTED_FACTOR for _, one in both)
    verdict = f"{len(both) - far} of {len(both)} estimates are within a factor of {TRUSTED_FACTOR:g}."
    return [*table(["", "measured, steps/s", "estimated, steps/s", "estimated / measured"], rows), "", verdict]


def growth(measured: Measured) -> list[str]:
    """A table for each thing that is varied."""
    families = [family for family in FAMILIES if any(point.name in measured.workloads for point in family.points)]
    return [line for family in families for line in [*grown(family, measured), ""]][:-1]


def grown(family: Family, measured: Measured) -> list[str]:
    """Milliseconds of a round and microseconds of a client's step, as one thing grows."""
    entries = ("handwritten", "sequential", "vectorized")
    points = [point for point in family.points if point.name in measured.workloads]
    rows = [[f"{family.value(point):,}", *costs(point, measured, entries)] for point in points]
    heads = [f"{name}, {unit}" for unit in ("ms a round", "µs a step") for name in ("hand-written", *entries[1:])]
    return table([family.varied, *heads, "vectorized / hand-written"], rows)


def costs(point: Point, measured: Measured, entries: Sequence[str]) -> list[str]:
    """Of the entries: a round each, a step each; and how much faster the last is than the first."""
    found = [measured.of(point.name, entry) for entry in entries]
    rounds = [f"{1e3 * one['round_s']:,.1f}" if one else "" for one in found]
    steps = [f"{1e6 / one['steps_per_s']:,.1f}" if one else "" for one in found]
    return [*rounds, *steps, ratio(found[-1])]


# ---- cells -----------------------------------------------------------------------------------------------------------


def titled(name: str) -> str:
    """A workload for people."""
    return f"{name}: {WORKLOADS[name].title}" if name in WORKLOADS else GROWTH[name].title


def by_engine(entries: Sequence[Entry]) -> list[Entry | None]:
    """Sequential, vectorized with one worker, vectorized with all cores; on one core the last two are the same."""
    sequential = next((one for one in entries if one["name"] == "sequential"), None)
    vectorized: list[Entry | None] = [one for one in entries if one["name"] == "vectorized"] or [None]
    return [sequential, vectorized[0], vectorized[-1]]


def rate(one: Entry) -> str:
    """Steps per second with their spread."""
    low, high = one["spread"]
    return f"{one['steps_per_s']:,.0f} ({low:,.0f} to {high:,.0f}){star(one)}"


def ratio(one: Entry | None) -> str:
    """To what it is compared with, with two digits, or with one from 10 on."""
    return "" if one is None else f"{one['ratio']:.{1 if one['ratio'] >= 10 else 2}f}{star(one)}"


def star(one: Entry) -> str:
    """The mark of a figure without an undisturbed repetition."""
    return "*" if one["void"] else ""


def factor(one: Entry) -> float:
    """Estimated over measured."""
    return float(one["estimated_steps_per_s"]) / float(one["steps_per_s"])


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table, and what a star means if there is one."""
    if not rows:
        return ["Not measured yet."]
    lines = ["| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *rows)]
    return [*lines, "", VOID] if any("*" in cell for row in rows for cell in row) else lines


TABLES: dict[str, Callable[[Measured], list[str]]] = {
    "machines": machines,
    "engines": engines,
    "clouds": clouds,
    "peers": peers,
    "same_work": same_work,
    "auto": auto,
    "growth": growth,
}


def written(page: str, measured: Measured) -> str:
    """The page with its tables made anew."""

    def made(found: re.Match[str]) -> str:
        opening, name, closing = found.groups()
        if name not in TABLES:
            raise ConfigError(f"The page has a marker for {name}, which is not a table. Known: {', '.join(TABLES)}.")
        return opening + "\n".join(["", *TABLES[name](measured), "", closing])

    return MARKED.sub(made, page)


def main() -> None:
    """Write the page; a mistake is told in a sentence."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("page", type=Path, help="Markdown with markers")
    parser.add_argument("files", type=Path, nargs="+", metavar="JSON", help="written by python -m benchmarks --json")
    args = parser.parse_args()
    try:
        args.page.write_text(written(args.page.read_text(), Measured.read(args.files)))
    except ConfigError as error:
        raise SystemExit(f"error: {error}") from None
    except OSError as error:
        raise SystemExit(f"error: {args.page} cannot be read and written ({error}).") from None


if __name__ == "__main__":
    main()
