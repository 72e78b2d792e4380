"""Cohort: who trains in a round, what they received and what they bring back. One class for each stage of the round.

    Cohort          is gathered        hook on_cohort_start
    TrainedCohort   has trained        hooks on_phase_end, on_cohort_trained
    WeighedCohort   is weighed         hooks on_pseudo_gradient and later

A field of a later stage does not exist yet: a type checker sees it, and an error says which hook has it. It is not what
outlives the round: that is `states.ClientStates`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Generic, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from fedlit.params import Params, concat_all_rows, concat_rows, stacked_sq_norm, under_prefix

T = TypeVar("T", Tensor, Params)
C = TypeVar("C", bound="Cohort")

_NO_NUMBERS = torch.zeros(0, dtype=torch.float64)
"""An empty tensor that all cohorts share: making 100 takes time."""
_NEEDED = "a client, weighting or callback that `needs` it takes part"
_EARLY = "cohort.{} is read too early: it is filled once {}."


@dataclass
class Selection:
    """A sampler's answer: the clients that train, and which of them report to the server."""

    train: list[int]
    report: list[int]
    order: list[list[int]] = field(default_factory=list)
    """Candidates in the order in which the sampler would take them, group by group; empty where it has no order."""


@dataclass(eq=False)
class CohortStack:
    """The stacked fields of the cohorts of an event, server after server.

    A hundred servers with ten clients each are a thousand rows for the arithmetic, and a hundred cohorts for those who
    look at one. What is gathered or trained for all of them stays in one piece; a server's part is cut out, as a view,
    when it is read.
    """

    counts: list[int]
    """Clients of each server."""
    fields: dict[str, Any]
    """By name: a tensor or a stacked dict, with a row for each client."""
    models: dict[str, Params] = field(default_factory=dict)
    """The same with a row for each server, which all of its clients receive."""
    repeated: dict[str, Params] = field(default_factory=dict)
    """Models with a row for each client, as far as they were asked for."""

    def __post_init__(self) -> None:
        self._ends = list(accumulate(self.counts))

    def __contains__(self, name: str) -> bool:
        return name in self.fields or name in self.models

    def part(self, name: str, place: int) -> Any:
        """A field of one server's cohort (views)."""
        count, end = self.counts[place], self._ends[place]
        if name not in self.fields:
            models = self.models[name]
            return {key: value[place].expand(count, *value.shape[1:]) for key, value in models.items()}
        value = self.fields[name]
        if len(self.counts) == 1:
            return value
        if isinstance(value, Tensor):
            return value[end - count : end]
        return {key: own[end - count : end] for key, own in value.items()}

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


class Stacked(Generic[T]):
    """A field of a cohort with a row for each client: a tensor, or a dict of tensors.

    Args:
        default: what it is where nobody has filled it.
        when: when it is filled, for an error; where there is no default.
        apart: whether cohorts that are joined leave it out.
    """

    name = ""

    def __init__(self, default: Callable[[], T] | None = None, *, when: str = "", apart: bool = False) -> None:
        self.default: Callable[[], T] | None = default
        self.when = when
        self.apart = apart

    def __set_name__(self, owner: type["Cohort"], name: str) -> None:
        self.name = name

    @overload
    def __get__(self, cohort: None, owner: type["Cohort"]) -> "Stacked[T]": ...
    @overload
    def __get__(self, cohort: "Cohort", owner: type["Cohort"]) -> T: ...
    def __get__(self, cohort: "Cohort | None", owner: type["Cohort"]) -> "Stacked[T] | T":
        if cohort is None:
            return self
        try:
            part: T = cohort.parts[self.name]
        except KeyError:
            part = cohort.parts[self.name] = self._read(cohort)
        return part

    def __set__(self, cohort: "Cohort", value: T) -> None:
        cohort.parts[self.name] = value

    def _read(self, cohort: "Cohort") -> T:
        if self.name in cohort.stack:
            part: T = cohort.stack.part(self.name, cohort.place)
            return part
        if self.default is None:
            raise AttributeError(_EARLY.format(self.name, self.when or "the cohort is gathered (hook on_cohort_start)"))
        return self.default()

    def is_in(self, cohort: "Cohort") -> bool:
        """Whether it is filled."""
        return self.name in cohort.parts or self.name in cohort.stack

    def of(self, cohorts: Sequence["Cohort"]) -> T:
        """The field of several cohorts, one below the other; as it lies, where no part of it was read or replaced."""
        stack = stack_of(cohorts)
        if stack is not None and self.name in stack and not any(self.name in cohort.parts for cohort in cohorts):
            whole: T = stack.all(self.name)
            return whole
        parts: list[Any] = [self.__get__(cohort, Cohort) for cohort in cohorts]
        joined: T = concat_rows(parts) if isinstance(parts[0], Tensor) else concat_all_rows(parts)  # type: ignore[assignment]
        return joined


@dataclass(eq=False, kw_only=True)
class Cohort:
    """The clients of a round, gathered; the client is the first dimension of every stacked field."""

    stack: CohortStack = field(repr=False)
    """The clients of all servers of the event."""
    place: int = field(default=0, repr=False)
    """Which of the servers this cohort belongs to."""
    round: int
    """Rounds that its server had finished before this one; the first round has number 0."""
    run_round: int = 1
    """The round of the run, from 1 on: what files and messages call it. With one server it is `round` + 1."""
    population: int
    """N: clients in the whole federation."""
    clients: list[int]
    """Ids of the clients that train, in the order of every stacked field."""
    draw_rounds: list[int]
    """(clients,) the round by which each client's draws are keyed: the server's when it was sent its model."""
    lrs: list[float]
    """(clients,) the local learning rate of each client, after any decay."""
    local_tensors: frozenset[str] = frozenset()
    """Names of the tensors that stay with each client and are not averaged."""
    duration_s: float = 0.0
    """Simulated seconds from the server's start of this round until it has its reports; 0 without a clock."""
    parts: dict[str, Any] = field(default_factory=dict, repr=False)
    """Stacked fields that were read or replaced, by name."""

    reports = Stacked[Tensor]()
    """(clients,) bool: who sends its model to the server. Weights and metrics see only these."""
    sizes = Stacked[Tensor]()
    """(clients,) n_i: training samples."""
    steps = Stacked[Tensor]()
    """(clients,) local steps of this round; 0 does not train, and keeps the client's rows unless another phase does."""
    received = Stacked[Params]()
    """The model each client received (an expanded view where all received the same)."""
    received_buffers = Stacked[Params]()
    """The buffers of the net that came with it (BatchNorm statistics …)."""
    state = Stacked[Params]()
    """Rows of `Client.state_spec`; whole models stand under `name.parameter`."""
    sent = Stacked[Params](dict)
    """What the server sends beside z (`Client.sent_spec`), filled in on_cohort_start; as in `state`."""
    optimizer_state = Stacked[Params](dict)
    """State of the local optimiser, where it is kept between rounds (`keep_optimizer`)."""
    seconds = Stacked[Tensor](lambda: _NO_NUMBERS)
    """(clients,) simulated seconds until the report of each of those who report is back; empty without a clock."""
    risk_received = Stacked[Tensor](when=f"{_NEEDED} (hook on_cohort_start)")
    """(clients,) mean loss of the received model on each client's training data, in evaluation mode; if needed."""
    grad_received = Stacked[Params](when=f"{_NEEDED} (hook on_cohort_start)")
    """Gradient of that mean loss at the received model; if needed."""

    @property
    def lr(self) -> float:
        """The local learning rate of the round; the mean where clients have different ones."""
        return self.lrs[0] if self._has_one_lr else float(np.mean(self.lrs))

    @property
    def _has_one_lr(self) -> bool:
        return self.lrs.count(self.lrs[0]) == len(self.lrs)

    @property
    def rate(self) -> float | Tensor:
        """The local learning rate: one for all, or (clients,) where they differ."""
        return self.lr if self._has_one_lr else torch.tensor(self.lrs, dtype=torch.float64)

    @property
    def lr_sums(self) -> Tensor:
        """(clients,) the sum of the learning rates a client uses, K_i * lr."""
        return self.steps.double() * self.rate

    @property
    def rate_sums(self) -> Tensor:
        """The older name of `lr_sums`."""
        return self.lr_sums

    @property
    def number(self) -> int:
        """The older name of `run_round`."""
        return self.run_round

    @property
    def trained(self) -> Tensor:
        """(clients,) bool: who took a step in any phase of the round so far. The others keep all their rows."""
        return torch.zeros(len(self.clients), dtype=torch.bool)

    @property
    def staleness(self) -> Tensor:
        """(clients,) steps that the server took since it sent each client its model."""
        return torch.tensor([self.round - drawn for drawn in self.draw_rounds])

    def model(self, name: str) -> Params:
        """Stacked: the whole-model state `name` as a parameter dict."""
        return under_prefix(name, self.state)

    def start_of(self, start: str) -> tuple[Params, Params]:
        """Stacked parameters and buffers from which a phase starts: `received`, or a whole-model state."""
        return self.received if start == "received" else self.model(start), self.received_buffers

    def take(self: C, rows: Sequence[int]) -> C:
        """Some of the clients, as a cohort of their own: what happens to it does not touch this one."""
        index = torch.tensor(rows)
        parts = {name: _rows_of(value, index) for name, value in self.filled().items()}
        return replace(
            self,
            stack=CohortStack([len(rows)], {}),
            place=0,
            clients=[self.clients[k] for k in rows],
            draw_rounds=[self.draw_rounds[k] for k in rows],
            lrs=[self.lrs[k] for k in rows],
            parts=parts,
        )

    def filled(self) -> dict[str, Any]:
        """Its stacked fields by name, but for those that are joined with nobody's."""
        names = stacked_fields(type(self)).items()
        return {name: getattr(self, name) for name, own in names if own.is_in(self) and not own.apart}

    @classmethod
    def join(cls: type[C], cohorts: Sequence[C], names: Sequence[str] = ()) -> C:
        """The clients of several servers as one cohort; a single one is itself.

        Args:
            cohorts: one for each server, all of one stage.
            names: the stacked fields that are joined; all that are filled unless given.
        """
        first = cohorts[0]
        if len(cohorts) == 1:
            return first
        known = stacked_fields(type(first))
        asked = names or [name for name, own in known.items() if own.is_in(first) and not own.apart]
        clients = [client for cohort in cohorts for client in cohort.clients]
        return replace(
            first,
            stack=CohortStack([len(clients)], {name: known[name].of(cohorts) for name in asked}),
            place=0,
            clients=clients,
            draw_rounds=[drawn for cohort in cohorts for drawn in cohort.draw_rounds],
            lrs=[rate for cohort in cohorts for rate in cohort.lrs],
            population=sum(cohort.population for cohort in cohorts),
            duration_s=max(cohort.duration_s for cohort in cohorts),
            parts={},
        )

    def largest_client(self) -> int:
        """Position of the reporting client with the most training samples; ties go to the lowest id."""
        return self._first_by(lambda size: -size)

    def smallest_client(self) -> int:
        """The same with the fewest."""
        return self._first_by(lambda size: size)

    def _first_by(self, order: Callable[[int], int]) -> int:
        sizes, reports = self.sizes.tolist(), self.reports.tolist()
        positions = [k for k, sends in enumerate(reports) if sends]
        return min(positions, key=lambda k: (order(sizes[k]), self.clients[k]))


_TRAINED = "the engine has trained the cohort (hook on_cohort_trained)"


class TrainedCohort(Cohort):
    """Clients that train or have trained."""

    params = Stacked[Params](when=_TRAINED)
    """x_i: the models after local training; what was received before the first phase."""
    buffers = Stacked[Params](when=_TRAINED)
    """The net's buffers after local training."""
    losses = Stacked[Tensor](when=_TRAINED)
    """(clients,) mean over its steps of each client's task loss; NaN where it took none."""
    steps_taken = Stacked[Tensor](when=_TRAINED)
    """(clients,) local steps that each has taken so far, in all phases of the round."""
    risk_trained = Stacked[Tensor](when=f"{_NEEDED} (hook on_cohort_trained)")
    """(clients,) mean loss of x_i on each client's training data, in evaluation mode; if needed."""
    discounts = Stacked[Tensor](lambda: _NO_NUMBERS)
    """(clients,) how much each client's move counts, where some received older models than the server's; else empty."""
    sent_params = Stacked[Params](dict, apart=True)
    """What each client sends in the place of x_i, by parameter; a callback that compresses fills it in
    on_cohort_trained. The server averages it; the client keeps x_i. What is not in it is sent as it is."""
    sent_bytes = Stacked[Tensor](lambda: _NO_NUMBERS)
    """(clients,) bytes that each client's model takes on its way, for comm/up_mb; empty where it is sent whole."""

    @classmethod
    def begin(cls, cohort: Cohort) -> "TrainedCohort":
        """A cohort before its first phase: models are those received, and nobody has taken a step."""
        count = len(cohort.clients)
        return cls(
            **_shared(cohort),
            parts=cohort.parts
            | {
                "params": cohort.received,
                "buffers": cohort.received_buffers,
                "losses": torch.full((count,), torch.nan),
                "steps_taken": torch.zeros(count, dtype=torch.int64),
            },
        )

    @property
    def trained(self) -> Tensor:
        """(clients,) bool: who took a step in any phase of the round so far. The others keep all their rows."""
        return self.steps_taken > 0

    @property
    def moves(self) -> Params:
        """Stacked: x_i - received, without what stays with the clients."""
        return {name: self.params[name] - self.received[name] for name in self.params if name not in self.local_tensors}

    @property
    def reported(self) -> Params:
        """Stacked: what reaches the server of each client: x_i, or what is sent in its place."""
        return self.params | self.sent_params

    @property
    def distances(self) -> Tensor:
        """(clients,) |x_i - received|^2; 0 where everything stays with the clients."""
        moves = self.moves
        return stacked_sq_norm(moves) if moves else torch.zeros(len(self.clients))

    @cached_property
    def mean_loss(self) -> float:
        """The task loss of the clients that trained, weighted by n_i; NaN where none did."""
        # numpy: these are short rows, and torch's operators cost ten times as much on them
        losses, sizes = self.losses.numpy().astype(np.float64), self.sizes.numpy() * (self.steps.numpy() > 0)
        return float(np.where(sizes > 0, losses, 0.0) @ sizes / sizes.sum()) if sizes.any() else float("nan")

    def start_of(self, start: str) -> tuple[Params, Params]:
        """The same; `trained` is the model of the phase before."""
        return (self.params, self.buffers) if start == "trained" else super().start_of(start)

    def in_phase(self, steps: Tensor, lr: float | None) -> "TrainedCohort":
        """The same clients with the steps, and perhaps the rate, of one local solve; states and models are shared."""
        lrs = self.lrs if lr is None else [lr] * len(self.clients)
        return replace(self, lrs=lrs, parts=self.parts | {"steps": steps})

    def split(self, cohorts: Sequence[Cohort]) -> "list[TrainedCohort]":
        """What was joined of these cohorts, and trained, as a cohort for each server again (views)."""
        if len(cohorts) == 1:
            return [self]
        before, joined = stack_of(cohorts), self.filled()
        is_unread = {name: not any(name in cohort.parts for cohort in cohorts) for name in joined}
        models = {} if before is None else {k: v for k, v in before.models.items() if k not in before.fields}
        models = {name: value for name, value in models.items() if is_unread[name]}
        stack = CohortStack(
            [len(cohort.clients) for cohort in cohorts],
            {name: value for name, value in joined.items() if name not in models},
            models,
            {name: joined[name] for name in models},
        )
        shared = [_shared(cohort) | {"stack": stack, "place": place} for place, cohort in enumerate(cohorts)]
        return [TrainedCohort(**own) for own in shared]

    @classmethod
    def from_reports(cls, reports: "Sequence[TrainedCohort]", round: int, population: int) -> "TrainedCohort":
        """Join buffered reports. Clients may have received models of different rounds.

        Args:
            reports: trained clients, one by one.
            round: the server's round, which they are a part of.
            population: the server's clients.
        """
        return replace(cls.join(reports), round=round, population=population)

    @contextmanager
    def untrained_rows_restored(self) -> Iterator[None]:
        """Whatever happens inside the block, clients that no phase trained keep their states and optimiser states."""
        if self.steps_taken.numpy().all():
            yield
            return
        idle = ~self.trained
        state, kept = ({k: v[idle] for k, v in rows.items()} for rows in (self.state, self.optimizer_state))
        yield
        self.state, self.optimizer_state = (
            _put_back(self.state, idle, state),
            _put_back(self.optimizer_state, idle, kept),
        )

    def trained_rows(self, rows: Params) -> tuple[list[int], Params]:
        """The clients that a phase trained, and theirs of these stacked rows: what is kept of a round.

        Whoever took no step keeps what it had, as if it had not been drawn.
        """
        if self.steps_taken.numpy().all():
            return self.clients, rows
        trained = self.trained
        clients = [client for client, own in zip(self.clients, trained.tolist(), strict=True) if own]
        return clients, {name: value[trained] for name, value in rows.items()}


@dataclass(eq=False, kw_only=True)
class WeighedCohort(TrainedCohort):
    """Clients whose models are averaged."""

    weights = Stacked[Tensor](when="the cohort has been weighed (hook on_pseudo_gradient)")
    """(clients,) aggregation weights, >= 0, sum 1 over the reporting clients, 0 elsewhere."""
    step_length: float = 1.0
    """Length of the server's step along the averaged move."""
    pseudo_gradient: Params = field(default_factory=dict, repr=False)
    """step * (z - sum_i w_i x_i): what the server optimiser steps along (`aggregate.pseudo_gradients`)."""

    @classmethod
    def weigh(cls, cohort: TrainedCohort, weights: Tensor, step_length: float) -> "WeighedCohort":
        """A trained cohort with its weights."""
        return cls(**_shared(cohort), parts=cohort.parts | {"weights": weights}, step_length=step_length)

    @classmethod
    def whole_round(cls, cohorts: "Sequence[WeighedCohort]") -> "WeighedCohort":
        """The cohorts of all servers, for metrics: every server counts alike, and its clients as it weighed them."""
        joined = cls.join(cohorts)
        if len(cohorts) > 1:
            joined.weights = joined.weights / len(cohorts)
        return joined


def stacked_fields(cls: type[Cohort]) -> dict[str, Stacked[Any]]:
    """Stacked fields of a stage, by name."""
    if cls not in _FIELDS:
        kinds = [vars(kind) for kind in reversed(cls.__mro__)]
        _FIELDS[cls] = {name: own for kind in kinds for name, own in kind.items() if isinstance(own, Stacked)}
    return _FIELDS[cls]


_FIELDS: dict[type[Cohort], dict[str, Stacked[Any]]] = {}


def stack_of(cohorts: Sequence[Cohort]) -> CohortStack | None:
    """What these cohorts, and no others, lie in."""
    stack = cohorts[0].stack
    if len(stack.counts) != len(cohorts):
        return None
    for place, cohort in enumerate(cohorts):
        if cohort.stack is not stack or cohort.place != place:
            return None
    return stack


_SHARED = [own.name for own in fields(Cohort) if own.name != "parts"]


def _shared(cohort: Cohort) -> dict[str, Any]:
    """What a cohort of a later stage takes over."""
    return {name: getattr(cohort, name) for name in _SHARED}


def _rows_of(value: Any, index: Tensor) -> Any:
    """These of the stacked rows; what is the same for all stays a view, and what is empty is empty."""
    if isinstance(value, dict):
        return {name: _rows_of(own, index) for name, own in value.items()}
    if value.shape[0] == 0:
        return value
    return value[: len(index)] if value.stride(0) == 0 else value[index]


def _put_back(rows: Params, which: Tensor, values: Params) -> Params:
    """Copies of the stacked rows with these values at the marked clients."""
    restored = {name: value.clone() for name, value in rows.items()}
    for name, value in values.items():
        restored[name][which] = value
    return restored


class _TooEarly:
    """In the place of a field of a later stage: reading it says from which hook on it is there."""

    def __init__(self, name: str, when: str) -> None:
        self.name = name
        self.when = when

    def __get__(self, cohort: Cohort | None, owner: type[Cohort]) -> "_TooEarly":
        if cohort is None:
            return self
        raise AttributeError(_EARLY.format(self.name, self.when))


def _refuse_early_reads(stage: type[Cohort], when: str, before: Sequence[type[Cohort]]) -> None:
    """What a stage adds is refused in those before it. A type checker sees no such field there at all."""
    own = {
        name: value for name, value in vars(stage).items() if isinstance(value, Stacked | property | cached_property)
    }
    for name in [*own, *vars(stage).get("__annotations__", {})]:
        for kind in before:
            if not hasattr(kind, name):
                setattr(kind, name, _TooEarly(name, getattr(own.get(name), "when", "") or when))


_refuse_early_reads(TrainedCohort, _TRAINED, [Cohort])
_refuse_early_reads(WeighedCohort, "the cohort has been aggregated (hook on_pseudo_gradient)", [Cohort, TrainedCohort])
