"""ClientStates: what the algorithm keeps for each client between rounds.

Only clients that have taken part have rows, of numbers or of whole models. Rows are in memory; those of whole models
can be in a file instead (`client/row_store.py`). Nothing here knows an algorithm.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlit.client.row_layout import RowLayout
from fedlit.client.row_store import RowStore, chunks
from fedlit.client.specs import INITIAL as INITIAL
from fedlit.client.specs import RECEIVED as RECEIVED
from fedlit.client.specs import ZEROS as ZEROS
from fedlit.client.specs import ModelRow as ModelRow
from fedlit.client.specs import StateSpec as StateSpec
from fedlit.client.states_location import check_room
from fedlit.ranks import Ranks


@dataclass(frozen=True)
class _Before:
    """What `discard` needs: the number of clients that had rows, the names of rows, and the rows that were replaced."""

    client_count: int
    names: frozenset[str]
    slots: Tensor
    rows: dict[str, Tensor]


@dataclass(frozen=True)
class _Disk:
    """The folder for rows on disk, and the processes that share it."""

    folder: Path
    ranks: Ranks


class ClientStates:
    """Named rows per client, stored densely in the order of first participation.

    `discard` undoes the last `update` until `commit` makes it final. Whole models can be kept on disk (`keep_on_disk`);
    states that are one number for each client are always in memory.
    """

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}
        self._rows: dict[str, Tensor] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        """Name of a row -> type of its initial value."""
        self._before: _Before | None = None
        self._disk: _Disk | None = None
        self._store: RowStore | None = None
        self._is_saved_apart = False
        self._expected = 0
        """Clients for which room in memory is reserved at once."""

    @property
    def touched(self) -> list[int]:
        """Ids of the clients that have rows, in the order of their first participation."""
        return list(self._slots)

    def has(self, client: int) -> bool:
        """Whether the client has taken part before."""
        return client in self._slots

    def rows(
        self, clients: Sequence[int], names: Sequence[str], first: Callable[[], Mapping[str, Tensor]]
    ) -> dict[str, Tensor]:
        """Stacked rows of the clients.

        Args:
            clients: ids of the clients.
            names: names of the rows.
            first: makes the first values of all these clients, stacked; called if some of them have no rows yet.
        """
        if not names:
            return {}
        positions = [k for k, client in enumerate(clients) if client in self._slots]
        kept = self.kept(names, [clients[k] for k in positions]) if positions else {}
        if positions and len(positions) == len(clients):
            return kept
        rows = {name: value.clone() for name, value in first().items()}
        self._dtypes |= {name: value.dtype for name, value in rows.items()}
        for name in kept:
            rows[name][positions] = kept[name].to(rows[name].dtype)
        return rows

    def keeps(self, name: str) -> bool:
        """Whether there are rows of this name."""
        return name in self._rows or (self._store is not None and self._store.holds(name))

    def kept(self, names: Sequence[str], clients: Sequence[int]) -> dict[str, Tensor]:
        """Stacked rows of clients that all have rows."""
        slots = torch.tensor([self._slots[client] for client in clients], dtype=torch.int64)
        stored: dict[str, Tensor] = {}
        if self._store is not None and any(name not in self._rows for name in names):
            stored = self._store.read(clients)
        return {name: self._rows[name].index_select(0, slots) if name in self._rows else stored[name] for name in names}

    def column(self, name: str) -> Tensor:
        """One state of all clients that have rows, in the order of `touched` (a view if it is in memory)."""
        return self._rows[name][: len(self._slots)] if name in self._rows else self.kept([name], self.touched)[name]

    def row(self, name: str, client: int) -> Tensor:
        """One row of a client that has rows (a view if it is in memory)."""
        if self._store is not None and name not in self._rows:
            return self._store.part(name, client)
        return self._rows[name][self._slots[client]]

    def update(self, clients: Sequence[int], rows: Mapping[str, Tensor]) -> None:
        """Store the stacked rows of these clients, possibly of none; everyone else is untouched.

        Rows keep the type of their first values, even if a callback has changed it.
        """
        rows = {name: value.detach().to(self._dtypes.get(name, value.dtype)) for name, value in rows.items()}
        stored = {name: value for name, value in rows.items() if self._disk is not None and is_whole_model(value)}
        if stored and clients:  # the disk first: if it is full, memory is unchanged
            self._open_store(stored).write(clients, stored)
        self._update_memory(clients, {name: value for name, value in rows.items() if name not in stored})

    def _update_memory(self, clients: Sequence[int], rows: Mapping[str, Tensor]) -> None:
        old_slots = torch.tensor(
            [self._slots[client] for client in clients if client in self._slots], dtype=torch.int64
        )
        replaced = {name: self._rows[name].index_select(0, old_slots) for name in rows if name in self._rows}
        self._before = _Before(len(self._slots), frozenset(self._rows), old_slots, replaced)
        slots = old_slots
        if len(old_slots) < len(clients):
            for client in clients:
                self._slots.setdefault(client, len(self._slots))
            slots = torch.tensor([self._slots[client] for client in clients], dtype=torch.int64)
        for name, value in rows.items():
            self._reserve(name, value)
            self._rows[name].index_copy_(0, slots, value.to(self._rows[name].dtype))

    def commit(self) -> None:
        """Make the last update final."""
        self._before = None
        if self._store is not None:
            self._store.commit()

    def discard(self) -> None:
        """Undo the last update, if it is not committed yet."""
        if self._store is not None:
            self._store.discard()
            self._store = self._store if self._store.clients else None  # the only write was undone
        if self._before is None:
            return
        before, self._before = self._before, None
        self._slots = dict(list(self._slots.items())[: before.client_count])
        self._rows = {name: value for name, value in self._rows.items() if name in before.names}
        for name, value in before.rows.items():
            self._rows[name][before.slots] = value

    def _reserve(self, name: str, like: Tensor) -> None:
        """Make room for all slots: for those that are expected at once, else by doubling.

        Doubling copies a row about once on average, even if clients come one by one. Meanwhile both copies are there.
        """
        rows = self._rows.get(name)
        needed = len(self._slots)
        if rows is not None and len(rows) >= needed:
            return
        grown = unwritten_zeros(max(needed, self._expected, 2 * len(rows) if rows is not None else 0), like)
        if rows is not None:
            grown[: len(rows)] = rows
        self._rows[name] = grown

    # ---- on disk ---------------------------------------------------------------------------------------------------

    def keep_on_disk(self, folder: Path, ranks: Ranks) -> None:
        """From now on keep whole models in a file in this folder; rows that are elsewhere are moved there."""
        self._disk = _Disk(folder, ranks)
        if self._store is not None and self._store.path.parent.resolve() == folder.resolve():
            return
        in_memory = [name for name, value in self._rows.items() if is_whole_model(value)]
        names = in_memory if self._store is None else list(self._store.layout.shapes)
        source, self._store = self._store, None
        for clients in chunks(self.touched) if names else ():
            rows = source.read(clients) if source is not None else self.kept(names, clients)
            store = self._open_store(rows)
            store.write(clients, rows)
            store.commit()
        for name in in_memory:
            del self._rows[name]

    def keep_in_memory(self, expected: int = 0) -> None:
        """From now on keep whole models in memory; rows on disk are loaded.

        Args:
            expected: clients that may take part, if room for all of them can be reserved.
        """
        self._expected = expected
        self._disk, store, self._store = None, self._store, None
        if store is not None:
            self._rows |= self._all_of(store)

    @contextmanager
    def saved_apart(self) -> Iterator[None]:
        """While last.ckpt is written: `state_dict` holds an index instead of the rows on disk."""
        self._is_saved_apart = True
        try:
            yield
        finally:
            self._is_saved_apart = False
        if self._store is not None:
            self._store.saved()

    @property
    def file(self) -> Path | None:
        """The file of whole models; None if they are in memory or there are none yet."""
        return None if self._store is None else self._store.path

    def _open_store(self, like: Mapping[str, Tensor]) -> RowStore:
        assert self._disk is not None
        if self._store is None:
            self._store = RowStore.create(self._disk.folder, RowLayout.of(dict(like)), self._disk.ranks)
        return self._store

    def _all_of(self, store: RowStore) -> dict[str, Tensor]:
        """Stacked: all rows on disk, in the order of `touched`."""
        layout, clients = store.layout, self.touched
        rows = {n: torch.empty(len(clients), *layout.shapes[n], dtype=layout.dtypes[n]) for n in layout.shapes}
        done = 0
        for chunk in chunks(clients):
            for name, value in store.read(chunk).items():
                rows[name][done : done + len(chunk)] = value
            done += len(chunk)
        return rows

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain data only, so that a checkpoint loads with `weights_only=True`."""
        used = len(self._slots)
        rows = {name: value[:used].clone() for name, value in self._rows.items()}
        state: dict[str, Any] = {"clients": self.touched, "rows": rows}
        if self._store is None:
            return state
        if self._is_saved_apart:
            return state | {"stored": self._store.index()}
        check_room(used * self._store.layout.width)
        return state | {"rows": rows | self._all_of(self._store)}

    def load_state_dict(self, state: Mapping[str, Any], folder: Path | None = None, ranks: Ranks | None = None) -> None:
        """The inverse of `state_dict`; `folder` holds the checkpoint and its rows on disk."""
        self._slots = {client: slot for slot, client in enumerate(state["clients"])}
        self._rows = {name: value.clone() for name, value in state["rows"].items()}
        self._before, self._store = None, None
        if "stored" in state:
            assert folder is not None, "only a run folder's checkpoints have rows beside them"
            self._store = RowStore.load(folder, state["stored"], ranks or Ranks())


def unwritten_zeros(count: int, like: Tensor) -> Tensor:
    """Zeros in so many rows like these. What was never written takes no memory (`torch.zeros` writes all of it)."""
    numbers = count * like.shape[1:].numel()
    memory = np.zeros(max(1, numbers) * like.element_size(), dtype=np.uint8)  # no bytes cannot be seen as numbers
    return torch.from_numpy(memory).view(like.dtype)[:numbers].reshape(count, *like.shape[1:])


def is_whole_model(rows: Tensor) -> bool:
    """Whether stacked rows are more than one number for each client."""
    return rows.shape[1:].numel() > 1
