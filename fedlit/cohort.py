"""Cohort: who trains this round, what they received and what they bring back.

It is not what outlives the round: that is `states.ClientStates`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlit.params import Params, all_below, below, stacked_sq_norm, under_prefix
from fedlit.whole import Whole

_FILLED_BY = {
    "params": "the engine has trained the cohort (hook on_cohort_trained)",
    "buffers": "the engine has trained the cohort (hook on_cohort_trained)",
    "losses": "the engine has trained the cohort (hook on_cohort_trained)",
    "risk_received": "a client, weighting or callback that `needs` it takes part (hook on_cohort_start)",
    "grad_received": "a client, weighting or callback that `needs` it takes part (hook on_cohort_start)",
    "risk_trained": "a client, weighting or callback that `needs` it takes part (hook on_cohort_trained)",
    "weights": "the cohort has been weighed (hook on_pseudo_gradient)",
    "pseudo_gradient": "the cohort has been aggregated (hook on_pseudo_gradient)",
}

_NO_NUMBERS = torch.zeros(0, dtype=torch.float64)
"""Numbers of nobody, made once: it would be a part of the time that a server costs."""


_NOWHERE: tuple[Whole | None, int] = (None, 0)
"""For a cohort that does not lie in a whole."""
_GATHERED = ("reports", "sizes", "steps", "seconds", "received", "received_buffers", "state", "sent", "memory")
_TRAINED = ("params", "buffers", "state", "memory", "taken", "losses")


@dataclass
class Selection:
    """A sampler's answer: the clients that train, and which of them report to the server."""

    train: list[int]
    report: list[int]
    order: list[list[int]] = field(default_factory=list)
    """Candidates in the order in which the sampler would take them, group by group; empty where it has no order."""


@dataclass
class Cohort:
    """The stacked tensors of one round; the client is the first dimension of each.

    Fields that a later phase of the round fills raise an error that says so when they are read too early.
    """

    round: int
    """Rounds that its server had finished before this one; the first round has number 0."""
    clients: list[int]
    """Ids of the clients that train, in the order of every stacked tensor."""
    reports: Tensor
    """(clients,) bool: who sends its model to the server. Weights and metrics see only these."""
    population: int
    """N: clients in the whole federation."""
    sizes: Tensor
    """(clients,) n_i: training samples."""
    steps: Tensor
    """(clients,) local steps of this round; 0 does not train, and keeps the client's rows unless another phase does."""
    lr: float
    """Local learning rate of this round, after any decay."""
    received: Params
    """Stacked: the model each client received (an expanded view where all received the same)."""
    received_buffers: Params
    """Stacked: the buffers of the net that came with it (BatchNorm statistics …)."""
    state: dict[str, Tensor]
    """Stacked rows of `Client.state_spec`; whole models stand under `name.parameter`."""
    sent: dict[str, Tensor] = field(default_factory=dict)
    """Stacked: what the server sends beside z (`Client.sent_spec`), filled in on_cohort_start; as in `state`."""
    number: int = 1
    """The round of the run, from 1 on: what files and messages call it. With one server it is `round` + 1."""
    lasts: float = 0.0
    """Simulated seconds from the server's start of this round until it has its reports; 0 without a clock."""
    seconds: Tensor = field(default_factory=lambda: _NO_NUMBERS)
    """(clients,) simulated seconds until the report of each of those who report is back; empty without a clock."""
    keys: list[int] = field(default_factory=list)
    """(clients,) the round by which each client's draws are keyed, where they began in different ones."""
    rates: list[float] = field(default_factory=list)
    """(clients,) the local learning rate of each client, where they differ; `lr` is then their mean."""
    discounts: Tensor = _NO_NUMBERS
    """(clients,) how much each client's move counts, where some received older models than the server's; else empty."""
    own: frozenset[str] = frozenset()
    """Names of the tensors that stay with each client and are not averaged."""
    memory: Params = field(default_factory=dict)
    """Stacked state of the local optimiser, where it is kept between rounds (`keep_optimizer`)."""
    sent_params: Params = field(default_factory=dict)
    """Stacked: what each client sends in the place of x_i, by parameter; a callback that compresses fills it in
    on_cohort_trained. The server averages it; the client keeps x_i. What is not in it is sent as it is."""
    sent_bytes: Tensor = _NO_NUMBERS
    """(clients,) bytes that each client's model takes on its way, for comm/up_mb; empty where it is sent whole."""
    taken: Tensor = field(init=False, repr=False)
    """(clients,) local steps that each has taken so far, in all phases of the round."""
    params: Params = field(init=False, repr=False)
    """Stacked x_i: the models after local training."""
    buffers: Params = field(init=False, repr=False)
    """Stacked: the net's buffers after local training."""
    losses: Tensor = field(init=False, repr=False)
    """(clients,) mean over its steps of each client's task loss; NaN where it took none."""
    risk_received: Tensor = field(init=False, repr=False)
    """(clients,) mean loss of the received model on each client's training data, in evaluation mode; if needed."""
    risk_trained: Tensor = field(init=False, repr=False)
    """(clients,) the same of x_i."""
    grad_received: Params = field(init=False, repr=False)
    """Stacked: gradient of that mean loss at the received model; if needed."""
    weights: Tensor = field(init=False, repr=False)
    """(clients,) aggregation weights, >= 0, sum 1 over the reporting clients, 0 elsewhere."""
    pseudo_gradient: Params = field(init=False, repr=False)
    """step * (z - sum_i w_i x_i): what the server optimiser steps along (`aggregate.pseudo_gradients`)."""

    def __post_init__(self) -> None:
        self.taken = torch.zeros(len(self.clients), dtype=torch.int64)

    def __getattr__(self, name: str) -> Any:
        whole, place = vars(self).get("_lies_in", _NOWHERE)
        if whole is not None and name in whole:
            vars(self)[name] = part = whole.part(name, place)
            return part
        if name in _FILLED_BY:
            raise AttributeError(f"cohort.{name} is read too early: it is filled once {_FILLED_BY[name]}.")
        raise AttributeError(f"Cohort has no field '{name}'.")

    @property
    def trained(self) -> Tensor:
        """(clients,) bool: who took a step in any phase of the round so far. The others keep all their rows."""
        return self.taken > 0

    def key(self, k: int) -> int:
        """The round by which the k-th client's draws are keyed: its server's own."""
        return self.keys[k] if self.keys else self.round

    @property
    def staleness(self) -> Tensor:
        """(clients,) steps that the server took since it sent each client its model."""
        return torch.tensor([self.round - self.key(k) for k in range(len(self.clients))])

    @property
    def rate(self) -> float | Tensor:
        """The local learning rate: one for all, or (clients,) where they differ."""
        return torch.tensor(self.rates, dtype=torch.float64) if self.rates else self.lr

    @property
    def rate_sums(self) -> Tensor:
        """(clients,) the sum of the learning rates a client used, K_i * lr."""
        return self.steps.double() * self.rate

    @property
    def moves(self) -> Params:
        """Stacked: x_i - received, without what stays with the clients."""
        return {name: self.params[name] - self.received[name] for name in self.params if name not in self.own}

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

    def model(self, name: str) -> Params:
        """Stacked: the whole-model state `name` as a parameter dict."""
        return under_prefix(name, self.state)

    def start_of(self, start: str) -> tuple[Params, Params]:
        """Stacked parameters and buffers from which a phase starts: `received`, `trained`, or a whole-model state."""
        if start == "trained":
            return self.params, self.buffers
        return self.received if start == "received" else self.model(start), self.received_buffers

    def in_phase(self, steps: Tensor, lr: float) -> "Cohort":
        """The same cohort with the steps and the rate of one local solve; states and models are shared, not copied.

        Whoever takes a step in it counts as trained from then on.
        """
        view = replace(self, steps=steps, lr=lr)
        view.taken = self.taken = self.taken + steps
        if "params" in vars(self):
            view.params, view.buffers = self.params, self.buffers
        return view

    def part(self, rows: Sequence[int]) -> "Cohort":
        """Some of the clients, as a cohort of their own: what happens to it does not touch this one."""
        index = torch.tensor(rows)
        part = replace(
            self,
            clients=[self.clients[k] for k in rows],
            keys=[self.keys[k] for k in rows] if self.keys else [],
            reports=self.reports[index],
            sizes=self.sizes[index],
            steps=self.steps[index],
            sent_params={},
        )
        for name in ("received", "received_buffers", "state", "sent", "memory"):
            setattr(part, name, _part(getattr(self, name), index))
        part.taken = self.taken[index]
        if "params" in vars(self):
            part.params, part.buffers = _part(self.params, index), _part(self.buffers, index)
        return part

    @classmethod
    def in_whole(cls, whole: Whole, each: Sequence[Mapping[str, Any]]) -> list["Cohort"]:
        """The cohorts of several servers before they train; those of one are a cohort as any other.

        Args:
            whole: their stacked fields.
            each: what else each of them has, by the name of the field.
        """
        if len(each) == 1:
            return [cls(**each[0], **{name: whole.all(name) for name in whole.names})]
        whole.fields |= {"taken": torch.zeros(sum(whole.counts), dtype=torch.int64), "memory": {}}
        cohorts = [cls.__new__(cls) for _ in each]
        for place, (cohort, own) in enumerate(zip(cohorts, each, strict=True)):
            empty: dict[str, Any] = {"keys": [], "rates": [], "sent_params": {}, "seconds": _NO_NUMBERS}
            vars(cohort).update(empty, **own, _lies_in=(whole, place))
        return cohorts

    @classmethod
    def join(cls, cohorts: Sequence["Cohort"]) -> "Cohort":
        """The clients of several servers as one cohort, to be trained at once; a single one is itself."""
        first = cohorts[0]
        if len(cohorts) == 1:
            return first
        joined = cls(
            round=first.round,
            clients=[client for cohort in cohorts for client in cohort.clients],
            keys=[cohort.round for cohort in cohorts for _ in cohort.clients],
            population=sum(cohort.population for cohort in cohorts),
            lasts=max(cohort.lasts for cohort in cohorts),
            lr=first.lr,
            number=first.number,
            own=first.own,
            **{name: together(cohorts, name) for name in _GATHERED},
        )
        joined.taken = together(cohorts, "taken")
        return joined

    def share(self, cohorts: Sequence["Cohort"]) -> None:
        """Give every server's cohort its part of what was trained together."""
        if len(cohorts) == 1:
            return
        trained = {name: getattr(self, name) for name in _TRAINED}
        whole = whole_of(cohorts)
        if whole is not None:
            whole.fields |= trained
        else:
            whole = Whole([len(cohort.clients) for cohort in cohorts], trained)
        for place, cohort in enumerate(cohorts):
            own = vars(cohort)
            own["_lies_in"] = whole, place  # what lay elsewhere was read when they were joined
            for name in trained:
                own.pop(name, None)

    @classmethod
    def join_trained(cls, cohorts: Sequence["Cohort"]) -> "Cohort":
        """The same after they were trained apart."""
        joined = cls.join(cohorts)
        for name in ("params", "buffers", "losses"):
            setattr(joined, name, together(cohorts, name))
        return joined

    @classmethod
    def join_kept(cls, cohorts: Sequence["Cohort"]) -> "Cohort":
        """The same once servers have stepped, with no more than what is kept of their clients."""
        if len(cohorts) == 1:
            return cohorts[0]
        joined = copy(cohorts[0])
        joined.clients = [client for cohort in cohorts for client in cohort.clients]
        for name in ("taken", "state", "memory", "params", "buffers"):
            setattr(joined, name, together(cohorts, name))
        return joined

    def only(self, k: int) -> "Cohort":
        """Its k-th client alone, before it trains, with what was measured of what it received."""
        alone = self.part([k])
        alone.seconds = self.seconds[k : k + 1]
        if "risk_received" in vars(self):
            alone.risk_received = self.risk_received[k : k + 1]
        if "grad_received" in vars(self):
            alone.grad_received = _part(self.grad_received, torch.tensor([k]))
        return alone

    def become_round(self, parts: Sequence["Cohort"], round: int, population: int) -> None:
        """These parts, joined and trained, are one server's round: they began in earlier rounds of it, or in this."""
        self.keys, rates = [part.round for part in parts], [part.lr for part in parts]
        self.round, self.population = round, population
        if len(set(rates)) > 1:
            self.rates, self.lr = rates, float(np.mean(rates))
        if "risk_received" in vars(parts[0]):
            self.risk_received = together(parts, "risk_received")
        if "grad_received" in vars(parts[0]):
            self.grad_received = together(parts, "grad_received")

    def weighed(self, cohorts: Sequence["Cohort"]) -> "Cohort":
        """The whole round, for its metrics: every server counts alike, and its clients as it weighed them."""
        if len(cohorts) > 1:
            self.weights = together(cohorts, "weights") / len(cohorts)
            self.state = together(cohorts, "state")
            if all(cohort.sent_bytes.numel() for cohort in cohorts):
                self.sent_bytes = together(cohorts, "sent_bytes")
        return self

    @contextmanager
    def idle_rows_held(self) -> Iterator[None]:
        """Whatever happens inside the block, clients that no phase trained keep their states and memory."""
        if self.taken.numpy().all():
            yield
            return
        idle = ~self.trained
        state, memory = ({name: value[idle] for name, value in rows.items()} for rows in (self.state, self.memory))
        yield
        self.state, self.memory = _put_back(self.state, idle, state), _put_back(self.memory, idle, memory)

    def trained_rows(self, rows: Params) -> tuple[list[int], Params]:
        """The clients that a phase trained, and theirs of these stacked rows: what is kept of a round.

        Whoever took no step keeps what it had, as if it had not been drawn.
        """
        if self.taken.numpy().all():
            return self.clients, rows
        trained = self.trained
        clients = [client for client, own in zip(self.clients, trained.tolist(), strict=True) if own]
        return clients, {name: value[trained] for name, value in rows.items()}

    def extreme(self, *, largest: bool) -> int:
        """Position of the reporting client with the most or fewest training samples; ties go to the lowest id."""
        sign = -1 if largest else 1
        sizes, reports = self.sizes.tolist(), self.reports.tolist()
        positions = [k for k, sends in enumerate(reports) if sends]
        return min(positions, key=lambda k: (sign * sizes[k], self.clients[k]))


def together(cohorts: Sequence[Cohort], name: str) -> Any:
    """A field of several cohorts, one below the other; as it lies, where no part of it was read or replaced."""
    whole = whole_of(cohorts)
    if whole is not None and name in whole and not any(name in vars(cohort) for cohort in cohorts):
        return whole.all(name)
    parts = [getattr(cohort, name) for cohort in cohorts]
    return below(parts) if isinstance(parts[0], Tensor) else all_below(parts)


def whole_of(cohorts: Sequence[Cohort]) -> Whole | None:
    """What these cohorts, and no others, lie in."""
    whole, _ = vars(cohorts[0]).get("_lies_in", _NOWHERE)
    if whole is None or len(whole.counts) != len(cohorts):
        return None
    for place, cohort in enumerate(cohorts):
        lies = cohort.__dict__.get("_lies_in", _NOWHERE)
        if lies[0] is not whole or lies[1] != place:
            return None
    return whole  # type: ignore[no-any-return]  # vars() knows no types


def _part(rows: Params, index: Tensor) -> Params:
    """These of the stacked rows; what is the same for all stays a view."""
    return {name: value[: len(index)] if value.stride(0) == 0 else value[index] for name, value in rows.items()}


def _put_back(rows: Params, which: Tensor, values: Params) -> Params:
    """Copies of the stacked rows with these values at the marked clients."""
    restored = {name: value.clone() for name, value in rows.items()}
    for name, value in values.items():
        restored[name][which] = value
    return restored
