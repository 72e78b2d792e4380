"""Whole: what the clients of several servers have, one below the other, until somebody asks for a server's part.

A hundred servers with ten clients each are a thousand rows for the arithmetic, and a hundred cohorts for those who look
at one. What is gathered or trained for all of them stays in one piece; a part is cut out, as a view, when it is read.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from fedlit.params import Params


class Whole:
    """Fields of the cohorts of several servers.

    Args:
        counts: clients of each server.
        fields: by name: a tensor or a stacked dict, with the clients of all servers.
        models: the same with a row for each server, which all of its clients receive.
    """

    def __init__(
        self, counts: Sequence[int], fields: Mapping[str, Any], models: Mapping[str, Params] | None = None
    ) -> None:
        self.counts = list(counts)
        self.fields = dict(fields)
        self._models = dict(models or {})
        self._ends = list(accumulate(counts))

    @property
    def names(self) -> list[str]:
        """Of all fields."""
        return [*dict.fromkeys([*self._models, *self.fields])]

    def __contains__(self, name: str) -> bool:
        return name in self.fields or name in self._models

    def part(self, name: str, place: int) -> Any:
        """A field of one server's cohort (views)."""
        count, end = self.counts[place], self._ends[place]
        if name not in self.fields:
            models = self._models[name]
            return {key: value[place].expand(count, *value.shape[1:]) for key, value in models.items()}
        value = self.fields[name]
        if isinstance(value, Tensor):
            return value[end - count : end]
        return {key: own[end - count : end] for key, own in value.items()}

    def all(self, name: str) -> Any:
        """A field of all cohorts (a view where it lies there; models are repeated for the clients of each server)."""
        if name in self.fields:
            return self.fields[name]
        if len(self.counts) == 1:
            return self.part(name, 0)
        servers = torch.repeat_interleave(torch.tensor(self.counts))
        return {key: value.index_select(0, servers) for key, value in self._models[name].items()}
