"""Shakespeare by role, after LEAF: 80 characters, and the next one as the target.

    ROOT/shakespeare/roles.json   {"roles": role -> text, "plays": role -> play}; or, in its place,
    ROOT/shakespeare/*.json       LEAF's own: {"users", "num_samples", "user_data": user -> {"x", "y"} or {"raw"}}

Text is cleaned as in FedProx and pFedMe: newlines become spaces, and several spaces one space. Characters become their
numbers in LEAF's alphabet of 80. All texts are in one array of bytes, one after the other, as *runs*: a run of n
characters has n - 80 windows, and a window is its position in that array. So none of the 4,226,206 windows is stored.

Readings: LEAF's windows (`x` 80 characters, `y` the next) are kept in their order, and joined to one run as long as
each continues the one before. LEAF has cut them in two ways, from a role's whole text (its paper) or line by
line after 80 spaces (its later code); sampling may also have shuffled them. Only the number of runs differs.

Caldas et al., LEAF: a benchmark for federated settings (2018).
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedlit.data.files import Bytes, Layout, damaged, reading
from fedlit.data.partition.base import RowNumbers
from fedlit.errors import DataError

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
WINDOW = 80  # characters before the target

LAYOUT = Layout(
    "Shakespeare",
    "shakespeare",
    ("roles.json",),
    hint="LEAF's all_data.json, or several such files, will do in its place.",
)
_NUMBER_OF = np.zeros(128, np.uint8)  # by ASCII code; asked only for characters of the alphabet
_NUMBER_OF[np.frombuffer(ALPHABET.encode("ascii"), np.uint8)] = np.arange(len(ALPHABET))


@dataclass(frozen=True)
class Texts:
    """The texts of all roles, as numbers of characters."""

    symbols: Bytes  # (characters,): numbers in ALPHABET, run after run
    roles: list[str]
    plays: list[str]  # of each role; empty texts where the files do not say
    role: RowNumbers  # (runs,): whose run it is, ascending
    starts: RowNumbers  # (runs,): where it begins in `symbols`
    lengths: RowNumbers  # (runs,): its characters

    @property
    def sizes(self) -> RowNumbers:
        """(roles,): the number of windows of each role; 0 for a text of fewer than 81 characters."""
        windows = np.maximum(self.lengths - WINDOW, 0)
        return np.bincount(self.role, weights=windows, minlength=len(self.roles)).astype(np.int64)

    def positions(self, role: int) -> RowNumbers:
        """Where in `symbols` the windows of a role begin, in the order of its text."""
        first, last = np.searchsorted(self.role, (role, role + 1))
        starts, windows = self.starts[first:last], np.maximum(self.lengths[first:last] - WINDOW, 0)
        before = np.cumsum(windows) - windows
        return np.repeat(starts - before, windows) + np.arange(windows.sum())


def windows(symbols: Bytes, positions: RowNumbers) -> tuple[Bytes, Bytes]:
    """(x, y) of the windows at these positions: x (windows, 80), y (windows,) the character after each."""
    return symbols[positions[:, np.newaxis] + np.arange(WINDOW)], symbols[positions + WINDOW]


def read_shakespeare(root: Path) -> Texts:
    """All roles: those of roles.json, or the users of LEAF's files where there is no roles.json."""
    leaf = sorted((root / LAYOUT.folder).glob("*.json"))
    if LAYOUT.missing(root) and leaf:
        return _join([role for path in leaf for role in _read_leaf(path)])
    return _join(_read_roles(*LAYOUT.paths(root)))


@dataclass(frozen=True)
class Role:
    """One role, before all texts are joined."""

    name: str
    play: str
    runs: list[Bytes]


def _join(roles: list[Role]) -> Texts:
    names = [role.name for role in roles]
    name, times = Counter(names).most_common(1)[0] if names else ("", 0)
    if times > 1:
        raise DataError(f"Shakespeare has the role {name} {times} times. Leave each user in one of LEAF's files only.")
    runs = [run for role in roles for run in role.runs]
    lengths = np.array([len(run) for run in runs], np.int64)
    return Texts(
        symbols=np.concatenate([np.empty(0, np.uint8), *runs]),
        roles=names,
        plays=[role.play for role in roles],
        role=np.repeat(np.arange(len(roles)), [len(role.runs) for role in roles]),
        starts=np.cumsum(lengths) - lengths,
        lengths=lengths,
    )


def _read_roles(path: Path) -> list[Role]:
    with reading(path):
        content = json.loads(path.read_bytes())
        texts, plays = content["roles"], content["plays"]
        return [Role(name, plays[name], [encode(path, name, clean(text))]) for name, text in texts.items()]


def _read_leaf(path: Path) -> list[Role]:
    with reading(path):
        content = json.loads(path.read_bytes())
        users, sizes, data = content["users"], content["num_samples"], content["user_data"]
        plays = content.get("hierarchies", [""] * len(users))
        return [
            Role(str(user), play, _user_runs(path, str(user), data[user], size))
            for user, size, play in zip(users, sizes, plays, strict=True)
        ]


def _user_runs(path: Path, user: str, data: Mapping[str, Any], size: int) -> list[Bytes]:
    """The windows of a user as LEAF cut them; the whole text if it did not."""
    if "y" not in data:
        text = data["raw"] if "raw" in data else data["x"]
        return [encode(path, user, clean(text if isinstance(text, str) else "\n".join(text)))]
    if not len(data["x"]) == len(data["y"]) == size:
        raise damaged(path, f"{user} has {len(data['x'])} x and {len(data['y'])} y where num_samples says {size}")
    if {len(text) for text in data["x"]} - {WINDOW} or {len(text) for text in data["y"]} - {1}:
        raise damaged(path, f"{user} has a window that is not {WINDOW} characters and the next one")
    x = encode(path, user, "".join(data["x"])).reshape(size, WINDOW)
    return join_windows(x, encode(path, user, "".join(data["y"])))


def join_windows(x: Bytes, y: Bytes) -> list[Bytes]:
    """The fewest runs whose windows, one after the other, are x (windows, 80) and y (windows,)."""
    continues = (x[1:, :-1] == x[:-1, 1:]).all(axis=1) & (x[1:, -1] == y[:-1])
    firsts = [0, *(np.flatnonzero(~continues) + 1).tolist()] if len(y) else []
    return [np.concatenate([x[first], y[first:end]]) for first, end in zip(firsts, [*firsts[1:], len(y)], strict=False)]


def clean(text: str) -> str:
    """Newlines become spaces, runs of spaces one space."""
    return re.sub("  +", " ", text.replace("\n", " "))


def encode(path: Path, role: str, text: str) -> Bytes:
    """(characters,): the number of each character in ALPHABET; a character that is not there is refused."""
    strange = sorted(set(text) - set(ALPHABET))
    if strange:
        raise damaged(path, f"{role} says {strange[0]!r}, which is not one of LEAF's {len(ALPHABET)} characters")
    return _NUMBER_OF[np.frombuffer(text.encode("ascii"), np.uint8)]
