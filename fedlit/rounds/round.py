"""Round: plays a round, from the draw of its clients to the commit of its results.

A round is a transaction. Servers, clocks and clients' rows change while it is played, and are put back if anything
raises before `commit`; files get its results in `commit` alone. It knows nothing of Lightning; what it needs of the run
around it is a `Host`.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from fedlit.client.cohort import Cohort, TrainedCohort, WeighedCohort
from fedlit.client.net_parts import trained_state
from fedlit.engines.base import threads
from fedlit.errors import located, noted
from fedlit.evaluation.round_metrics import round_metrics
from fedlit.params import Params, clone, copy_into, unstack
from fedlit.results.folder import RunFolder
from fedlit.rounds.assembly import RoundParts
from fedlit.rounds.divergence import check_divergence, check_servers
from fedlit.rounds.gathering import RoundOptions
from fedlit.rounds.interrupts import StopRequest
from fedlit.rounds.newcomers import with_newcomers
from fedlit.rounds.protocol import Event, Moment, ServerRecords
from fedlit.rounds.run_state import RoundRecord, RunState
from fedlit.server.aggregate import averaged_buffers, pseudo_gradients
from fedlit.server.base import check_sent
from fedlit.server.server import Server, move
from fedlit.server.weights import check_weights

_CHECKED = ("losses", "params", "steps", "sizes")
"""Fields that `check_divergence` reads."""
_STORED = ("steps_taken", "state", "optimizer_state", "params", "buffers")
"""Fields that `store_rows` reads."""


class Host(Protocol):
    """What a round needs of the run around it."""

    options: RoundOptions
    folder: RunFolder | None
    stop_request: StopRequest

    def profile(self, phase: str) -> AbstractContextManager[object]:
        """Measure the time of a block, under a name."""

    def call(self, server: Server, hook: str, *args: Any) -> None:
        """Call a hook of every callback of a server."""

    def awaits_optimizer_step(self) -> bool:
        """Whether any callback has Lightning's hook on_before_optimizer_step."""

    def before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Call Lightning's hook before the step of a server's optimiser."""

    def is_due(self, number: int) -> bool:
        """Whether the state after round `number` is evaluated."""

    def is_last(self, number: int) -> bool:
        """Whether round `number` is the last one."""

    def count_rounds(self) -> None:
        """Set Lightning's counters after a commit."""


@dataclass(frozen=True)
class Stopwatch:
    """When a round began, and when its training ended, in seconds of this machine's clock."""

    started: float
    train_ended: float


class Round:
    """Plays one round at each call of `play`:

        next_event         which servers step: the only one, or those of a cloud that have their reports first; the
                           sampler draws their clients from (seed, round), and the algorithm may change the draw
        train              hook on_cohort_start, then every client's local solve by the engine
        check_divergence   numbers that are not finite end the run here
        receive            dual ascent, control variates … (hook on_cohort_trained)
        weigh              the weighting says how much each client counts
        step               servers mix, and their optimisers move z along the pseudo-gradient (hook on_pseudo_gradient)
        store_rows         of the cohort; everyone else is untouched
        measure            metrics; of users, in rounds that are evaluated
        commit             the round counts

    Args:
        state: what checkpoints hold, and what a failed round restores.
        parts: the objects that play a round.
        host: the run around it.
    """

    def __init__(self, state: RunState, parts: RoundParts, host: Host) -> None:
        self.state = state
        self.parts = parts
        self.host = host

    def play(self) -> RoundRecord:
        """One round: the whole of it, or nothing."""
        started, number = time.perf_counter(), self.state.rounds_done + 1
        with self.host.profile("gather"):
            event = self.parts.protocol.next_event(self.parts.gatherer)
        with self.transaction(event.servers):
            with self.host.profile("train"):
                trained = self.train(event, number)
            watch = Stopwatch(started, time.perf_counter())
            cohorts, newly = event.to_step(trained), self.newly_trained(trained)
            self.check_divergence(cohorts)
            with self.host.profile("server"):
                weighed = self.step_together(event, cohorts)
            due = self.host.is_due(number)
            servers = self.parts.protocol.records(event) if due else {}
            self.parts.protocol.finish(event, number)
            with self.host.profile("evaluate"):
                whole = WeighedCohort.whole_round(weighed)
                record = self.measure(number, whole, watch, servers, newly=newly, due=due)
            with self.host.profile("log"):
                self.commit(number, record)
        return record

    def measure_initial_model(self) -> RoundRecord:
        """Measure the initial model: row 0 of every file and logger."""
        with self.transaction([]):
            record = self.measure(0, None, None, {}, newly=0, due=True)
            self.commit(0, record)
        return record

    # ---- a transaction -----------------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self, servers: Sequence[Server]) -> Iterator[None]:
        """Restore the state of the last finished round if the block fails before the round's `commit`."""
        state = self.state
        before, first_risk = state.protocol.snapshot(servers), state.first_risk
        state.in_round = True
        try:
            yield
        except BaseException as error:
            if state.in_round:
                with self.host.stop_request.held():
                    state.first_risk = first_risk
                    self._undo(before, error)
            raise
        finally:
            state.in_round = False

    def _undo(self, before: Moment, error: BaseException) -> None:
        """Return to the last finished round. Every action is taken; what one raises becomes a note of `error`."""
        state, folder = self.state, self.host.folder
        state.postponed.clear()
        restore = partial(state.protocol.restore, before)
        actions: list[Callable[[], None]] = [
            state.clients.discard,
            self.parts.round_evaluator.forget,
            restore,
            self.load_global_model,
        ]
        if folder is not None:
            last = state.rounds_done if state.history.rows else -1  # -1: not even row 0 stays
            actions.append(partial(folder.forget_after, last))
        for action in actions:
            with noted(error, f"While round {state.rounds_done + 1} was undone"):
                action()

    def load_global_model(self) -> None:
        """Copy the model that is measured into the client's net, where users, exports and checkpoints read it."""
        copy_into(self.parts.client.net, self.parts.device.sent(self.state.global_model))

    # ---- phases of a round -------------------------------------------------------------------------------------------

    def train(self, event: Event, number: int) -> list[TrainedCohort]:
        """Train the clients of all servers that are due; returns a cohort for each."""
        for server, cohort in event.to_send():
            cohort.run_round = number
            self.send(server, cohort)
        cohorts = event.to_train()  # with a buffer, some of them were sent their models in earlier rounds
        for cohort in cohorts:
            cohort.run_round = number
        return self.parts.training.train(cohorts)

    def newly_trained(self, cohorts: Sequence[TrainedCohort]) -> int:
        """How many of these clients had never trained before, and so were sent more."""
        has = self.state.clients.has
        return sum(not has(client) for cohort in cohorts for client in cohort.clients)

    def check_divergence(self, cohorts: Sequence[TrainedCohort]) -> None:
        """Raise DivergedError before anything is stored if a client is not finite or the mean loss exploded."""
        joined, factor = TrainedCohort.join(cohorts, _CHECKED), self.host.options.divergence_factor
        self.state.first_risk = check_divergence(joined, self.state.first_risk, factor)

    def step_together(self, event: Event, cohorts: Sequence[TrainedCohort]) -> list[WeighedCohort]:
        """Callbacks, weights, steps of the servers, and their clients' rows.

        A cloud may mix and step several times with the same reports (K_z).
        """
        for server, cohort in zip(event.servers, cohorts, strict=True):
            self.receive(server, cohort)
        weighed, protocol = self.weigh(cohorts), self.parts.protocol
        for _ in range(protocol.iterations):
            protocol.mix(event.servers)
            self.step(event.servers, weighed)
            check_servers(protocol.federation.models(event.servers), self.state.rounds_done + 1)
        self.store_rows(weighed)
        for server, stepped in zip(event.servers, weighed, strict=True):
            self.host.call(server, "on_server_step_end", stepped)
        return weighed

    def send(self, server: Server, cohort: Cohort) -> None:
        """Before a server's clients train: measure what they receive, if needed, and let its callbacks add to it."""
        self.parts.training.measure_received(cohort)
        self.host.call(server, "on_cohort_start", cohort)

    def receive(self, server: Server, cohort: TrainedCohort) -> None:
        """After a server's clients have trained: measure them, if needed, and let its callbacks handle the cohort."""
        self.parts.training.measure_trained(cohort)
        if server.callbacks:
            with cohort.untrained_rows_restored():
                self.host.call(server, "on_cohort_trained", cohort)
            check_sent(cohort, server.callbacks)

    def weigh(self, cohorts: Sequence[TrainedCohort]) -> list[WeighedCohort]:
        """Compute the weights of the clients, and the length of each server's step."""
        weighting, factor = self.parts.weighting, self.parts.client.server_lr
        with located(f"in round {cohorts[0].run_round}, in the weighting {type(weighting).__name__}"):
            weighed = weighting.weigh_each(cohorts)
        check_weights(weighed, cohorts, weighting)
        pairs = zip(cohorts, weighed, strict=True)
        return [WeighedCohort.weigh(cohort, answer.weights, answer.step * factor) for cohort, answer in pairs]

    def step(self, servers: Sequence[Server], cohorts: Sequence[WeighedCohort]) -> None:
        """Move each z along its pseudo-gradient; this can be undone until the round is committed."""
        gradients = pseudo_gradients(self.parts.protocol.federation.models(servers), cohorts)
        is_awaited = self.host.awaits_optimizer_step()
        for server, cohort, gradient in zip(servers, cohorts, unstack(gradients, len(servers)), strict=True):
            cohort.pseudo_gradient = gradient
            self.host.call(server, "on_pseudo_gradient", cohort)
            if is_awaited:
                self.host.before_optimizer_step(server.optimizer)
        first, optimizer = cohorts[0], type(servers[0].optimizer).__name__
        fixed = frozenset() if self.parts.client.average_kept else first.local_tensors
        buffers = unstack(averaged_buffers(cohorts), len(servers))
        with located(f"in round {first.run_round}, in the server's optimiser {optimizer}"):
            move(servers, [cohort.pseudo_gradient for cohort in cohorts], buffers, fixed=fixed)

    def store_rows(self, cohorts: Sequence[WeighedCohort]) -> None:
        """Store the rows of clients that trained; this can be undone until the round is committed."""
        joined = WeighedCohort.join(cohorts, _STORED)
        clients, rows = joined.trained_rows(self.parts.rows_of(joined))
        self.state.clients.update(clients, rows)
        self.parts.round_evaluator.invalidate(clients)

    # ---- measuring and committing ------------------------------------------------------------------------------------

    def measure(
        self,
        number: int,
        cohort: WeighedCohort | None,
        watch: Stopwatch | None,
        servers: ServerRecords,
        *,
        newly: int,
        due: bool,
    ) -> RoundRecord:
        """The metrics of the round and, if it is evaluated, the record of each client and server."""
        parts, values = self.parts, {}
        if cohort is not None:
            values = round_metrics(cohort, parts.client, parts.told_numbers, newly)
        evaluated = time.perf_counter()
        users = self.evaluate(number, cohort, values) if due else None
        if servers:
            scored = len(self.parts.protocol.servers)
            values["comm/eval_mb"] += parts.round_evaluator.scoring_mb(parts.protocol.global_model, scored)
        newcomers = self.measure_newcomers(number, values) if due else None
        now = time.perf_counter()
        if watch is not None:
            values |= {"time/train_s": watch.train_ended - watch.started, "time/round_s": now - watch.started}
        if due:
            values["time/eval_s"] = now - evaluated
        values |= self.protocol_metrics()
        first_server = self.state.server  # these hooks are called once in a round, and not once for each server
        if users is not None:
            self.host.call(first_server, "on_users_measured", cohort, users)
        self.host.call(first_server, "on_round_metrics", cohort, values)
        self.state.history.check(values)
        servers = self.measured_servers(number, servers)
        model = clone(self.parts.protocol.global_model)  # may call a callback's evaluated_model; nothing is written yet
        return RoundRecord(values, users, newcomers, servers, model)

    def evaluate(self, number: int, cohort: WeighedCohort | None, values: dict[str, float]) -> dict[str, Any]:
        """Measure all users, add to the round's values, and return the record of each client."""
        with threads(self.parts.choice.evaluation_threads):
            measured, users = self.parts.round_evaluator.evaluate(cohort, self.parts.protocol.global_model, number)
        values |= measured | {"comm/eval_mb": self.parts.round_evaluator.sent_mb}
        return users

    def measure_newcomers(self, number: int, values: dict[str, float]) -> dict[str, Any] | None:
        """Measure the clients that were held back, if it is time, add to the values, and return their records."""
        newcomers = self.parts.newcomers
        if newcomers is None or not (newcomers.is_asked_after(number) or self.host.is_last(number)):
            return None
        tuned = self.parts.round_evaluator.tuned
        measured = newcomers.measure(self.parts.protocol.servers, number, self.host.call, tuned)
        values |= measured.values
        return measured.records

    def protocol_metrics(self) -> dict[str, float]:
        """Simulated time, and the numbers of the servers' protocol."""
        values = {} if self.host.options.clock is None else {"time/sim_s": self.parts.protocol.time}
        return values | self.parts.protocol.metrics()

    def measured_servers(self, number: int, servers: ServerRecords) -> ServerRecords:
        """The servers' records, with the round and the score of every server's model on the pooled test."""
        if not servers:
            return {}
        models = [server.global_model for server in self.parts.protocol.servers]
        with threads(self.parts.choice.evaluation_threads):
            scores = self.parts.round_evaluator.pooled_scores(models)
        return {"round": [number] * len(models), **servers, self.parts.client.task.first.name: scores}

    def commit(self, number: int, record: RoundRecord) -> None:
        """Make the round final. Files, which can fail, come first; Ctrl-C waits until all is done."""
        state, folder = self.state, self.host.folder
        with self.host.stop_request.held():
            copy_into(self.parts.client.net, self.parts.device.sent(record.global_model))
            if folder is not None:
                if record.users is not None:
                    folder.append_clients(number, self.records(record))
                folder.append_metrics(number, state.history.row(record.values))
                if record.happened is not None:
                    folder.append_event(number, record.happened.plain())
            state.clients.commit()
            state.add(number, record, self.shown_model)
            self.host.count_rounds()
            state.in_round = False  # the round is complete: a checkpoint may be written

    def records(self, record: RoundRecord) -> dict[str, Any]:
        """The rows of clients.parquet; in a run that has newcomers, a column marks them."""
        assert record.users is not None
        return record.users if self.parts.newcomers is None else with_newcomers(record.users, record.newcomers)

    def shown_model(self) -> Params:
        """The trained part of the net with the global model, from the host's copy; it becomes best.ckpt."""
        net = self.parts.client.net
        return {name: self.state.global_model.get(name, value) for name, value in trained_state(net).items()}
