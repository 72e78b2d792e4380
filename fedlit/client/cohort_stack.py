"""CohortStack and Stacked: the fields of a cohort that have a row for each client, stored once for all servers.

With a hundred servers of ten clients each, arithmetic runs over a thousand rows at once, while callbacks look at one
server's cohort at a time. So the rows of all servers stay in one piece, and those of one server are cut out, as views,
when they are read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, Generic, TypeVar, overload

import torch
from torch import Tensor

from fedlit.params import Params, concat_all_rows, concat_rows

T = TypeVar("T", Tensor, Params)

_EARLY = "cohort.{} is read too early: it is filled once {}."


@dataclass(eq=False)
class CohortStack:
    """The stacked fields of all cohorts of an event, server after server."""

    counts: list[int]
    """Clients of each server."""
    fields: dict[str, Any]
    """By name: a tensor or a stacked dict, with a row for each client."""
    models: dict[str, Params] = field(default_factory=dict)
    """By name: a stacked dict with a row for each server, which all of its clients receive."""
    repeated: dict[str, Params] = field(default_factory=dict)
    """Those of `models` that were asked for with a row for each client."""

    def __post_init__(self) -> None:
        self._ends = list(accumulate(self.counts))

    def __contains__(self, name: str) -> bool:
        return name in self.fields or name in self.models

    def part(self, name: str, index: int) -> Any:
        """A field of one server's cohort (views)."""
        value = self.fields.get(name)
        if value is not None and len(self.counts) == 1:
            return value
        count, end = self.counts[index], self._ends[index]
        if value is None:
            models = self.models[name]
            return {key: value[index].expand(count, *value.shape[1:]) for key, value in models.items()}
        if isinstance(value, Tensor):
            return value[end - count : end]
        return {key: rows[end - count : end] for key, rows in value.items()}

    def all(self, name: str) -> Any:
        """A field of all cohorts; models are repeated for the clients of each server."""
        if name in self.fields:
            return self.fields[name]
        if len(self.counts) == 1:
            return self.part(name, 0)
        if name not in self.repeated:
            servers = torch.repeat_interleave(torch.tensor(self.counts))
            models = self.models[name]
            self.repeated[name] = {key: value.index_select(0, servers) for key, value in models.items()}
        return self.repeated[name]


@dataclass(eq=False, kw_only=True)
class StackPart:
    """One server's part of a stack."""

    stack: CohortStack = field(repr=False)
    """The clients of all servers of the event."""
    server_index: int = field(default=0, repr=False)
    """Position of this cohort's server in the stack."""
    parts: dict[str, Any] = field(default_factory=dict, repr=False)
    """Stacked fields that were read or replaced, by name."""


class Stacked(Generic[T]):
    """A field of a cohort with a row for each client: a tensor, or a dict of tensors.

    Args:
        default: makes the value of a field that was never filled; without it, reading such a field is an error.
        when: when the field is filled, for that error.
        apart: leave the field out when cohorts are joined.
    """

    name = ""

    def __init__(self, default: Callable[[], T] | None = None, *, when: str = "", apart: bool = False) -> None:
        self.default: Callable[[], T] | None = default
        self.when = when
        self.apart = apart

    def __set_name__(self, owner: type[StackPart], name: str) -> None:
        self.name = name

    @overload
    def __get__(self, cohort: None, owner: type[StackPart]) -> "Stacked[T]": ...
    @overload
    def __get__(self, cohort: StackPart, owner: type[StackPart]) -> T: ...
    def __get__(self, cohort: StackPart | None, owner: type[StackPart]) -> "Stacked[T] | T":
        if cohort is None:
            return self
        try:
            part: T = cohort.parts[self.name]
        except KeyError:
            part = cohort.parts[self.name] = self._read(cohort)
        return part

    def __set__(self, cohort: StackPart, value: T) -> None:
        cohort.parts[self.name] = value

    def _read(self, cohort: StackPart) -> T:
        if self.name in cohort.stack:
            part: T = cohort.stack.part(self.name, cohort.server_index)
            return part
        if self.default is None:
            raise AttributeError(_EARLY.format(self.name, self.when or "the cohort is gathered (hook on_cohort_start)"))
        return self.default()

    def is_in(self, cohort: StackPart) -> bool:
        """Whether the field is filled."""
        return self.name in cohort.parts or self.name in cohort.stack

    def of(self, cohorts: Sequence[StackPart]) -> T:
        """The field of several cohorts, one below the other.

        If these are all cohorts of a stack and none of their parts was read or replaced, nothing is copied.
        """
        if len(cohorts) == 1:
            return self.__get__(cohorts[0], StackPart)
        stack = stack_of(cohorts)
        if stack is not None and self.name in stack and not any(self.name in cohort.parts for cohort in cohorts):
            stored: T = stack.all(self.name)
            return stored
        parts: list[Any] = [self.__get__(cohort, StackPart) for cohort in cohorts]
        joined: T = concat_rows(parts) if isinstance(parts[0], Tensor) else concat_all_rows(parts)  # type: ignore[assignment]
        return joined


def stacked_fields(cls: type[StackPart]) -> dict[str, Stacked[Any]]:
    """Stacked fields of a stage, by name."""
    if cls not in _FIELDS:
        kinds = [vars(kind) for kind in reversed(cls.__mro__)]
        _FIELDS[cls] = {name: value for kind in kinds for name, value in kind.items() if isinstance(value, Stacked)}
    return _FIELDS[cls]


_FIELDS: dict[type[StackPart], dict[str, Stacked[Any]]] = {}


def stack_of(cohorts: Sequence[StackPart]) -> CohortStack | None:
    """The stack of which these cohorts are all parts, in order; None if there is none."""
    stack = cohorts[0].stack
    if len(stack.counts) != len(cohorts):
        return None
    for index, cohort in enumerate(cohorts):
        if cohort.stack is not stack or cohort.server_index != index:
            return None
    return stack


def take_rows(value: Any, index: Tensor) -> Any:
    """Some of the stacked rows. An expanded view stays a view, and an empty tensor stays empty."""
    if isinstance(value, dict):
        return {name: take_rows(rows, index) for name, rows in value.items()}
    if value.shape[0] == 0:
        return value
    return value[: len(index)] if value.stride(0) == 0 else value[index]


def put_rows(rows: Params, which: Tensor, values: Params) -> Params:
    """Copies of the stacked rows, with these values at the marked clients."""
    restored = {name: value.clone() for name, value in rows.items()}
    for name, value in values.items():
        restored[name][which] = value
    return restored


# ---- reading a field of a later stage --------------------------------------------------------------------------------


class TooEarly:
    """Stands for a field of a later stage: reading it raises an error that names the hook from which on it exists."""

    def __init__(self, name: str, when: str) -> None:
        self.name = name
        self.when = when

    def __get__(self, cohort: StackPart | None, owner: type[StackPart]) -> "TooEarly":
        if cohort is None:
            return self
        raise AttributeError(_EARLY.format(self.name, self.when))


def refuse_early_reads(stage: type[StackPart], when: str, before: Sequence[type[StackPart]]) -> None:
    """Refuse to read, in the stages `before`, the fields that a stage adds. A type checker sees no such field there."""
    added = {
        name: value for name, value in vars(stage).items() if isinstance(value, Stacked | property | cached_property)
    }
    for name in [*added, *vars(stage).get("__annotations__", {})]:
        for kind in before:
            if not hasattr(kind, name):
                setattr(kind, name, TooEarly(name, getattr(added.get(name), "when", "") or when))
