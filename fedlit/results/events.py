"""events.jsonl: what happened in a federation, a line for each round, with which a simulation repeats it.

The first line says which run it was. A line ends with a checksum of itself and of the run's name, so that a changed
line, or one of another run, is found.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from fedlit.errors import DataError

Pace = Literal["clock", "real"]
"""What decides which server of a cloud steps next: the simulated clock, or real arrivals."""
_FORM = 1
_CHECK = "check"


@dataclass(frozen=True)
class Asked:
    """Clients that were asked for something."""

    answered: Mapping[int, float] = field(default_factory=dict)
    """Client -> seconds until its answer was there, in the order of the answers."""
    missing: Mapping[int, str] = field(default_factory=dict)
    """Client -> why it did not answer, as the end of a sentence that begins with its name."""

    @property
    def clients(self) -> list[int]:
        """All of them."""
        return sorted([*self.answered, *self.missing])

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        return {"answered": _named(self.answered), "missing": _named(self.missing)}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        """The inverse of `plain`."""
        answered = {client: float(seconds) for client, seconds in _numbered(plain["answered"]).items()}
        return cls(answered, {client: str(why) for client, why in _numbered(plain["missing"]).items()})


@dataclass(frozen=True)
class RoundEvents:
    """What happened in one round."""

    round: int
    time_s: float = 0.0
    """Seconds of the step: simulated ones, or at a real pace, real ones since the run began."""
    trained: Mapping[int, Asked] = field(default_factory=dict)
    """Server that stepped -> the clients that it asked to train."""
    finish_s: Mapping[int, float] = field(default_factory=dict)
    """At a real pace: server that had its reports -> since when, in the same seconds."""
    measured: Mapping[str, Asked] = field(default_factory=dict)
    """evaluate or score -> the clients that were asked to measure; empty in rounds without it."""

    @property
    def missing(self) -> frozenset[int]:
        """The clients that were to train and did not, or whose answers were not used."""
        return frozenset(client for asked in self.trained.values() for client in asked.missing)

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "round": self.round,
            "time_s": self.time_s,
            "servers": [{"server": server, **asked.plain()} for server, asked in self.trained.items()],
            **({"finish_s": _named(self.finish_s)} if self.finish_s else {}),
            **{kind: asked.plain() for kind, asked in self.measured.items()},
        }

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        """The inverse of `plain`."""
        return cls(
            int(plain["round"]),
            float(plain["time_s"]),
            {int(one["server"]): Asked.of(one) for one in plain["servers"]},
            {server: float(seconds) for server, seconds in _numbered(plain.get("finish_s", {})).items()},
            {kind: Asked.of(plain[kind]) for kind in ("evaluate", "score") if kind in plain},
        )


@dataclass(frozen=True)
class Recorded:
    """Which run the events belong to."""

    run: str
    """Names the run; a resumed one keeps its name."""
    pace: Pace
    clients: Mapping[str, Sequence[int]]
    """Name -> its samples: train, val, test, adapt."""
    settings: Mapping[str, Any]
    """`config_file.result_settings` of the run."""

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        named = {name: list(sizes) for name, sizes in self.clients.items()}
        return {"events": _FORM, "run": self.run, "pace": self.pace, "clients": named, "settings": self.settings}


def event_line(plain: Mapping[str, Any], run: str = "") -> str:
    """A line of the file; the first one belongs to no run yet."""
    text = json.dumps(plain, default=str)
    return f'{text[:-1]}, "{_CHECK}": "{checksum(run, text)}"}}\n'


@dataclass(frozen=True)
class Events:
    """The content of an events file."""

    path: Path
    recorded: Recorded
    rounds: Sequence[RoundEvents]
    """From round 0 on, whose model is the initial one."""

    @property
    def last(self) -> int:
        """The last round."""
        return len(self.rounds) - 1

    def of(self, round: int) -> RoundEvents:
        """What happened in a round; nothing in one that was not recorded."""
        return self.rounds[round] if round <= self.last else RoundEvents(round)


def read_events(path: Path) -> Events:
    """An events file; DataError, with file and line, unless it is as it was written."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"The events {path} cannot be read ({error}). Name the events.jsonl of a run of fedlit flower."
        ) from error
    found = list(_checked(path, lines))
    if len(found) < 2:
        raise DataError(f"The events {path} end before the first round. Name the events.jsonl of a run that began.")
    try:
        head = found[0]
        if head["events"] != _FORM:
            raise DataError(f"The events {path} are from another version of fedlit. Repeat the run with that one.")
        recorded = Recorded(head["run"], head["pace"], head["clients"], head["settings"])
        rounds = [RoundEvents.of(plain) for plain in found[1:]]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"The events {path} have another form than fedlit writes ({error!r}).") from error
    if [one.round for one in rounds] != list(range(len(rounds))):
        raise DataError(f"The events {path} do not have all rounds in their order. Take them from the run's folder.")
    return Events(path, recorded, rounds)


def _checked(path: Path, lines: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """The lines as plain data; DataError for the first that is not as it was written."""
    run = ""
    for number, line in enumerate(lines, start=1):
        text, _, end = line.rpartition(f', "{_CHECK}": "')
        text += "}"
        if end != f'{checksum(run, text)}"}}':
            raise DataError(
                f"The events {path} are damaged in line {number}: it is not as their run wrote it, or is a line of "
                "another run. Take the file from the run's folder, or from a copy."
            )
        plain = json.loads(text)
        run = run or str(plain.get("run"))
        yield plain


def checksum(run: str, text: str) -> str:
    """Of a line of a run."""
    return hashlib.sha256(f"{run}{text}".encode()).hexdigest()[:16]


def _named(values: Mapping[int, Any]) -> dict[str, Any]:
    return {str(number): value for number, value in values.items()}


def _numbered(values: Mapping[str, Any]) -> dict[int, Any]:
    return {int(number): value for number, value in values.items()}
