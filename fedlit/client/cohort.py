"""Cohort: who trains in a round, what they received and what they bring back. One class for each stage of the round.

    Cohort          is gathered        hook on_cohort_start
    TrainedCohort   has trained        hooks on_phase_end, on_cohort_trained
    WeighedCohort   is weighed         hooks on_pseudo_gradient and later

A field of a later stage does not exist yet. A type checker reports it, and the error at run time names the first hook
that has it. What is kept from round to round is not here: see `states.ClientStates`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedlit.client.cohort_stack import (
    CohortStack,
    Stacked,
    StackPart,
    put_rows,
    refuse_early_reads,
    stack_of,
    stacked_fields,
    take_rows,
)
from fedlit.params import Params, concat_all_rows, stacked_sq_norm, under_prefix

C = TypeVar("C", bound="Cohort")

_NO_NUMBERS = torch.zeros(0, dtype=torch.float64)
"""An empty tensor that all cohorts share: making 100 takes time."""
_NEEDED = "a client, weighting or callback that `needs` it takes part"


@dataclass
class Selection:
    """A sampler's answer: the clients that train, and which of them report to the server."""

    train: list[int]
    report: list[int]
    order: list[list[int]] = field(default_factory=list)
    """Candidates of each group, in the order in which the sampler takes them; empty for a sampler without an order."""


@dataclass(eq=False, kw_only=True)
class Cohort(StackPart):
    """The clients of a round, gathered; the client is the first dimension of every stacked field."""

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
    reports = Stacked[Tensor]()
    """(clients,) bool: who sends its model to the server. Weights and metrics see only these."""
    sizes = Stacked[Tensor]()
    """(clients,) n_i: training samples."""
    steps = Stacked[Tensor]()
    """(clients,) local steps of this round; a client with 0 in all phases keeps its rows."""
    received = Stacked[Params]()
    """The model each client received (an expanded view where all received the same)."""
    received_buffers = Stacked[Params]()
    """The buffers of the net that came with it (BatchNorm statistics …)."""
    state = Stacked[Params]()
    """Rows of `Client.state_spec`; whole models stand under `name.parameter`."""
    sent = Stacked[Params](dict)
    """What the server sends besides z (`Client.sent_spec`), filled in on_cohort_start; named as in `state`."""
    optimizer_state = Stacked[Params](dict)
    """State of the local optimiser, if it is kept between rounds (`keep_optimizer`)."""
    seconds = Stacked[Tensor](lambda: _NO_NUMBERS)
    """Simulated seconds until each client's report is back, for those that were to report; empty without a clock."""
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
        """(clients,) bool: who has taken a step in this round. The others keep all their rows."""
        return torch.zeros(len(self.clients), dtype=torch.bool)

    @property
    def staleness(self) -> Tensor:
        """(clients,) steps that the server has taken since it sent each client its model."""
        return torch.tensor([self.round - drawn for drawn in self.draw_rounds])

    def model(self, name: str) -> Params:
        """Stacked: the whole-model state `name` as a parameter dict."""
        return under_prefix(name, self.state)

    def start_of(self, start: str) -> tuple[Params, Params]:
        """Stacked parameters and buffers from which a phase starts: `received`, or a whole-model state."""
        return self.received if start == "received" else self.model(start), self.received_buffers

    def take(self: C, rows: Sequence[int]) -> C:
        """Some of the clients, copied into a cohort of their own."""
        index = torch.tensor(rows)
        parts = {name: take_rows(value, index) for name, value in self.filled().items()}
        return replace(
            self,
            stack=CohortStack([len(rows)], {}),
            server_index=0,
            clients=[self.clients[k] for k in rows],
            draw_rounds=[self.draw_rounds[k] for k in rows],
            lrs=[self.lrs[k] for k in rows],
            parts=parts,
        )

    def filled(self) -> dict[str, Any]:
        """The filled stacked fields by name, without those that are never joined (`Stacked.apart`)."""
        names = stacked_fields(type(self)).items()
        return {name: getattr(self, name) for name, stacked in names if stacked.is_in(self) and not stacked.apart}

    @classmethod
    def join(cls: type[C], cohorts: Sequence[C], names: Sequence[str] = ()) -> C:
        """The clients of several servers as one cohort; a single cohort is returned as it is.

        Args:
            cohorts: one for each server, all of one stage.
            names: the stacked fields to join; all filled ones by default.
        """
        first = cohorts[0]
        if len(cohorts) == 1:
            return first
        known = stacked_fields(type(first))
        joined = names or [name for name, stacked in known.items() if stacked.is_in(first) and not stacked.apart]
        clients = [client for cohort in cohorts for client in cohort.clients]
        return replace(
            first,
            stack=CohortStack([len(clients)], {name: known[name].of(cohorts) for name in joined}),
            server_index=0,
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
        """Position of the reporting client with the fewest training samples; ties go to the lowest id."""
        return self._first_by(lambda size: size)

    def _first_by(self, order: Callable[[int], int]) -> int:
        sizes, reports = self.sizes.tolist(), self.reports.tolist()
        positions = [k for k, sends in enumerate(reports) if sends]
        return min(positions, key=lambda k: (order(sizes[k]), self.clients[k]))


_TRAINED = "the engine has trained the cohort (hook on_cohort_trained)"


class TrainedCohort(Cohort):
    """Clients that train or have trained."""

    params = Stacked[Params](when=_TRAINED)
    """x_i: the models after local training; before the first phase, the received models."""
    buffers = Stacked[Params](when=_TRAINED)
    """The net's buffers after local training."""
    losses = Stacked[Tensor](when=_TRAINED)
    """(clients,) mean over its steps of each client's task loss; NaN where it took none."""
    steps_taken = Stacked[Tensor](when=_TRAINED)
    """(clients,) local steps that each has taken so far, in all phases of the round."""
    risk_trained = Stacked[Tensor](when=f"{_NEEDED} (hook on_cohort_trained)")
    """(clients,) mean loss of x_i on each client's training data, in evaluation mode; if needed."""
    discounts = Stacked[Tensor](lambda: _NO_NUMBERS)
    """(clients,) s_i, which scales each client's move if some received older models than z; else empty."""
    sent_params = Stacked[Params](dict, apart=True)
    """What each client sends instead of x_i, by parameter; a client that compresses fills it in on_phase_end.
    The server averages it, and the client keeps x_i. A parameter that is not in it is sent unchanged."""
    sent_bytes = Stacked[Tensor](lambda: _NO_NUMBERS)
    """(clients,) bytes of each client's sent model, for comm/up_mb; empty if models are sent uncompressed."""

    reported_rows = Stacked[Params](dict)
    """What each client sends besides x_i (`Client.report_spec`), filled in on_phase_end; named as in `state`."""
    summary = Stacked[Params](
        when="a phase ends of a client that has summarize(); only on_phase_end reads it", apart=True
    )
    """What `Client.summarize` gave for each client's own rows; only in on_phase_end, never at the server."""

    @classmethod
    def begin(cls, cohort: Cohort) -> "TrainedCohort":
        """A cohort before its first phase: its models are the received ones, and nobody has taken a step."""
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
        """(clients,) bool: who has taken a step in this round. The others keep all their rows."""
        return self.steps_taken > 0

    @property
    def moves(self) -> Params:
        """Stacked: x_i - received, without the tensors that stay with the clients."""
        return {name: self.params[name] - self.received[name] for name in self.params if name not in self.local_tensors}

    @property
    def reported(self) -> Params:
        """Stacked: what each client sends to the server: x_i, or `sent_params` in its place."""
        return self.params | self.sent_params

    @property
    def distances(self) -> Tensor:
        """(clients,) |x_i - received|^2; 0 if all tensors stay with the clients."""
        moves = self.moves
        return stacked_sq_norm(moves) if moves else torch.zeros(len(self.clients))

    @cached_property
    def mean_loss(self) -> float:
        """The mean task loss of the clients that trained, weighted by n_i; NaN if none did."""
        # numpy: these are short rows, and torch's operators cost ten times as much on them
        losses, sizes = self.losses.numpy().astype(np.float64), self.sizes.numpy() * (self.steps.numpy() > 0)
        return float(np.where(sizes > 0, losses, 0.0) @ sizes / sizes.sum()) if sizes.any() else float("nan")

    def reported_model(self, name: str) -> Params:
        """Stacked: the whole model that was reported as `name`, as a parameter dict."""
        return under_prefix(name, self.reported_rows)

    def sent_model(self, name: str) -> Params:
        """Stacked: the whole model that the server sent as `name`, as a parameter dict."""
        return under_prefix(name, self.sent)

    def start_of(self, start: str) -> tuple[Params, Params]:
        """As in the base; `trained` is the model after the previous phase."""
        return (self.params, self.buffers) if start == "trained" else super().start_of(start)

    def in_phase(self, steps: Tensor, lr: float | None) -> "TrainedCohort":
        """The same clients with the steps of one phase, and its rate if it has one; states and models are shared."""
        lrs = self.lrs if lr is None else [lr] * len(self.clients)
        return replace(self, lrs=lrs, parts=self.parts | {"steps": steps})

    def split(self, cohorts: Sequence[Cohort]) -> "list[TrainedCohort]":
        """Undo `join` after training: one trained cohort for each of these (views)."""
        if len(cohorts) == 1:
            return [self]
        before, joined = stack_of(cohorts), self.filled()
        if self.sent_params:
            joined["sent_params"] = self.sent_params
        is_unread = {name: not any(name in cohort.parts for cohort in cohorts) for name in joined}
        models = {} if before is None else {k: v for k, v in before.models.items() if k not in before.fields}
        models = {name: value for name, value in models.items() if is_unread[name]}
        stack = CohortStack(
            [len(cohort.clients) for cohort in cohorts],
            {name: value for name, value in joined.items() if name not in models},
            models,
            {name: joined[name] for name in models},
        )
        shared = [_shared(cohort) | {"stack": stack, "server_index": index} for index, cohort in enumerate(cohorts)]
        return [TrainedCohort(**arguments) for arguments in shared]

    @classmethod
    def from_reports(cls, reports: "Sequence[TrainedCohort]", round: int, population: int) -> "TrainedCohort":
        """Join buffered reports. Clients may have received models of different rounds.

        Args:
            reports: cohorts of one trained client each.
            round: the server's present round.
            population: the number of the server's clients.
        """
        joined = cls.join(reports)
        if len(reports) > 1 and reports[0].sent_params:
            joined.sent_params = concat_all_rows([report.sent_params for report in reports])
        return replace(joined, round=round, population=population)

    @contextmanager
    def untrained_rows_restored(self) -> Iterator[None]:
        """After the block, give clients that have taken no step their states and optimiser states back."""
        if self.steps_taken.numpy().all():
            yield
            return
        idle = ~self.trained
        state, kept = ({k: v[idle] for k, v in rows.items()} for rows in (self.state, self.optimizer_state))
        yield
        self.state, self.optimizer_state = (
            put_rows(self.state, idle, state),
            put_rows(self.optimizer_state, idle, kept),
        )

    def trained_rows(self, rows: Params) -> tuple[list[int], Params]:
        """The clients that took a step, and their part of these stacked rows: what is stored after a round.

        A client without a step keeps what it had, as if it had not been drawn.
        """
        if self.steps_taken.numpy().all():
            return self.clients, rows
        trained = self.trained
        clients = [client for client, has_trained in zip(self.clients, trained.tolist(), strict=True) if has_trained]
        return clients, {name: value[trained] for name, value in rows.items()}


@dataclass(eq=False, kw_only=True)
class WeighedCohort(TrainedCohort):
    """Clients with the weights by which the server averages their models."""

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
        """Join the cohorts of all servers, for metrics: every server counts the same, its clients by their weights."""
        joined = cls.join(cohorts)
        if len(cohorts) > 1:
            joined.weights = joined.weights / len(cohorts)
        return joined


_SHARED = [item.name for item in fields(Cohort) if item.name != "parts"]


def _shared(cohort: Cohort) -> dict[str, Any]:
    """The plain fields that a cohort of the next stage takes over."""
    return {name: getattr(cohort, name) for name in _SHARED}


refuse_early_reads(TrainedCohort, _TRAINED, [Cohort])
refuse_early_reads(WeighedCohort, "the cohort has been aggregated (hook on_pseudo_gradient)", [Cohort, TrainedCohort])
