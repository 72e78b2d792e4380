"""FederatedLoop: one advance() is one round. The only file that touches Lightning's protected names.

It subclasses Lightning's fit loop, so that callbacks, loggers and checkpoints find what they expect; one Lightning
*epoch* is one *round*. A round is a transaction: all that is saved changes together, in `commit`, or not at all. So a
checkpoint always holds the state at a round's end; one that is asked for inside a round is written at its end.
`tests/test_loop_contract.py` names every protected name that is used here.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import Timer
from pytorch_lightning.loops.fit_loop import _FitLoop
from pytorch_lightning.profilers import Profiler
from pytorch_lightning.trainer import call
from pytorch_lightning.utilities.exceptions import SIGTERMException

from fedlit.client import Client
from fedlit.cohort import Cohort
from fedlit.data.base import FederatedDataModule
from fedlit.data.pooled import Pooled
from fedlit.divergence import check_divergence, check_servers
from fedlit.engines.choose import (
    Choice,
    Room,
    check_same_engine,
    choose,
    make_engine,
    make_forward,
    resumed_request,
    stays,
)
from fedlit.engines.device import Device
from fedlit.engines.distributed import DistributedEngine
from fedlit.engines.forward import CHUNK
from fedlit.errors import located
from fedlit.evaluate import threads
from fedlit.federation import Event, Federation
from fedlit.gathering import Gathering, RoundOptions
from fedlit.history import Best, History, ServerHistory, round_columns, round_metrics
from fedlit.measuring import MeasureOptions, Measuring, rows_to_measure
from fedlit.params import Params, at_least_single, load, rows, stack, with_prefix
from fedlit.ranks import Ranks
from fedlit.room import Need, obstacle, on_disk
from fedlit.run import RunFolder
from fedlit.server.aggregate import averaged_buffers, pseudo_gradients
from fedlit.server.base import ServerCallback, check_sent
from fedlit.server.server import Server, move
from fedlit.server.weights import Weighting, check_weights
from fedlit.states import INITIAL, ClientStates
from fedlit.stopping import Stopping
from fedlit.tally import Tally
from fedlit.training import Training
from fedlit.users import UserModels

log = logging.getLogger("fedlit")

LOCAL_MODELS_BYTES = 1e9
"""`store_local_models: auto` keeps every client's last model up to this much memory."""


class FederatedLoop(_FitLoop):
    """Rounds instead of epochs:

    for round in range(rounds):
        due      which servers step: the one there is, or those of a cloud that have their reports first
        who      the sampler draws a cohort from (seed, round)
        train    the engine runs every client's local solve
        after    dual ascent, control variates … (hook on_cohort_trained)
        weigh    the weighting says how much each client counts
        step     the server's optimiser moves z along the pseudo-gradient
        keep     the cohort's rows; everyone else is untouched
        measure  metrics, on the rounds that are due
    """

    def __init__(
        self, trainer: Trainer, rounds: int, options: RoundOptions, measures: MeasureOptions | None = None
    ) -> None:
        super().__init__(trainer, max_epochs=rounds)
        self.options = options
        self.measures = measures or MeasureOptions()
        self.weighting: Weighting | None = None
        self.folder: RunFolder | None = None
        self.rounds_done = 0
        self.stopping = Stopping()
        self.in_round = False
        self.states = ClientStates()
        self.history = History()
        self.server_history = ServerHistory()
        self.best = Best()
        self.last_records: dict[str, Any] | None = None
        """Every client as it was measured last, by this process."""
        self.first_risk: float | None = None
        self.choice: Choice | None = None
        self.device = Device()
        self.ranks = Ranks()
        self.tally = Tally()
        self._begun_with: dict[str, Any] | None = None
        self._stop_agreed = False
        self._ready = False
        self._postponed: list[Callable[[], None]] = []

    # ---- one round -------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """One round: the whole of it, or nothing."""
        started = time.perf_counter()
        try:
            with self.profile("gather"):
                event = self.federation.next_event(self.gathering)
            with self.transaction(event.servers):
                values = self.play_round(event, started)
        except StopIteration as error:  # Lightning would take it for the end of the run
            raise RuntimeError(f"Round {self.rounds_done + 1} raised StopIteration.") from error
        with self.profile("log"):
            self._publish(values)
        if self.is_due(self.rounds_done):
            self._call_validation_hooks()

    @contextmanager
    def transaction(self, servers: Sequence[Server]) -> Iterator[None]:
        """A round of these servers that fails before its `commit` leaves the state of the last finished round."""
        before, first_risk = self.federation.snapshot(servers), self.first_risk
        self.in_round = True
        try:
            yield
        except BaseException:
            if self.in_round:
                self._postponed.clear()
                self.federation.restore(before)
                self.show_model()
                self.states.discard()
                self.measuring.forget()
                self.first_risk = first_risk
                if self.folder is not None:
                    self.folder.forget_clients_after(self.rounds_done if self.history.rows else -1)
            raise
        finally:
            self.in_round = False

    def play_round(self, event: Event, started: float) -> dict[str, float]:
        """The phases of a round, in order; returns its metrics."""
        number = self.rounds_done + 1
        with self.profile("train"):
            parts, joined = self.train(event, number)
        trained = time.perf_counter()
        self.first_risk = check_divergence(joined, self.first_risk, self.options.divergence_factor)
        cohorts = self.federation.cohorts(event, parts, joined)
        with self.profile("server"):
            self.step_together(event, cohorts)
        due = self.is_due(number)
        servers = self.federation.records(event) if due and self.options.cloud is not None else {}
        self.federation.count(event, number)
        joined = joined.weighed(cohorts)
        with self.profile("evaluate"):
            values, records = self.measure(joined, started, trained, due=due)
        with self.profile("log"):
            self.commit(number, values, records, servers)
        return values

    def train(self, event: Event, number: int) -> tuple[list[Cohort], Cohort]:
        """The clients of all servers that are due, part by part and as one cohort."""
        for server, cohort in self.federation.sent(event, number):
            self.send(server, cohort)
        parts = self.federation.parts(event, number)
        return parts, self.training.train(parts)

    def step_together(self, event: Event, cohorts: Sequence[Cohort]) -> None:
        """Servers that are due take their clients' models in, mix and step, and keep what clients keep."""
        pairs = list(zip(event.servers, cohorts, strict=True))
        for server, cohort in pairs:
            self.receive(server, cohort)
        lengths = self.weigh(cohorts)
        for iteration in range(self.iterations):
            self.federation.mix(event, self.rounds_done + 1, iteration)
            self.step(event.servers, cohorts, lengths)
            check_servers(self.federation.models(event.servers), self.rounds_done + 1)
        self.keep(cohorts)
        for server, cohort in pairs:
            self.call(server, "on_server_step_end", cohort)

    @property
    def iterations(self) -> int:
        """K_z: how often servers mix and step in a round."""
        return 1 if self.options.cloud is None else self.options.cloud.iterations

    def send(self, server: Server, cohort: Cohort) -> None:
        """What a server's clients are given, before they train."""
        self.training.measure_received(cohort)
        self.call(server, "on_cohort_start", cohort)

    def receive(self, server: Server, cohort: Cohort) -> None:
        """What a server does with what comes back."""
        self.training.measure_trained(cohort)
        if server.callbacks:
            with cohort.idle_rows_held():
                self.call(server, "on_cohort_trained", cohort)
            check_sent(cohort, server.callbacks)

    def weigh(self, cohorts: Sequence[Cohort]) -> list[float]:
        """Fill the cohorts' weights; returns the length of each server's step."""
        assert self.weighting is not None
        with located(f"in round {cohorts[0].number}, in the weighting {type(self.weighting).__name__}"):
            weighed = self.weighting.weigh_each(cohorts)
        check_weights(weighed, cohorts, self.weighting)
        for cohort, own in zip(cohorts, weighed, strict=True):
            cohort.weights = own.weights
        return [own.step * self.client.server_lr for own in weighed]

    def step(self, servers: Sequence[Server], cohorts: Sequence[Cohort], lengths: Sequence[float]) -> None:
        """Each z moves along its pseudo-gradient, until the round is committed or undone."""
        gradients = pseudo_gradients(self.federation.models(servers), cohorts, lengths)
        is_awaited = self._is_overridden("on_before_optimizer_step")
        for server, cohort, gradient in zip(servers, cohorts, rows(gradients, len(servers)), strict=True):
            cohort.pseudo_gradient = gradient
            self.call(server, "on_pseudo_gradient", cohort)
            if is_awaited:
                call._call_callback_hooks(self.trainer, "on_before_optimizer_step", server.optimizer)
        fixed = frozenset() if self.client.average_kept else cohorts[0].own
        buffers = rows(averaged_buffers(cohorts), len(servers))
        with located(f"in round {cohorts[0].number}, in the server's optimiser {type(servers[0].optimizer).__name__}"):
            move(servers, [cohort.pseudo_gradient for cohort in cohorts], buffers, fixed=fixed)

    def keep(self, cohorts: Sequence[Cohort]) -> None:
        """The rows of those who trained, until the round is committed or undone."""
        whole = Cohort.join_kept(cohorts)
        clients, rows = whole.trained_rows(self.rows(whole))
        self.states.update(clients, rows)
        self.measuring.changed(clients)

    def rows(self, cohort: Cohort) -> Params:
        """Stacked: all that is kept of a cohort."""
        rows = dict(cohort.state) | with_prefix("memory", cohort.memory)
        rows |= with_prefix("own", {k: v for k, v in (cohort.params | cohort.buffers).items() if k in cohort.own})
        if self.keeps_local_models or "local" in self.client.state_spec():
            rows |= with_prefix("local", cohort.params) | with_prefix("local", cohort.buffers)
        return rows

    def measure(
        self, cohort: Cohort | None, started: float, trained: float, *, due: bool = True
    ) -> tuple[dict[str, float], dict[str, Any] | None]:
        """Metrics of the round, and the record of each client where it is evaluated."""
        values = round_metrics(cohort, self.client) if cohort is not None else {}
        evaluated = time.perf_counter()
        records = self.evaluate(cohort, values) if due else None
        now = time.perf_counter()
        if cohort is not None:
            values |= {"time/train_s": trained - started, "time/round_s": now - started}
        if due:
            values["time/eval_s"] = now - evaluated
        values |= self.federation_metrics()
        if records is not None:
            self.call(self.server, "on_users_measured", cohort, records)
        self.call(self.server, "on_round_metrics", cohort, values)
        self.history.check(values)
        return values, records

    def federation_metrics(self) -> dict[str, float]:
        """Simulated time, how far apart the servers are, how old what they step with is."""
        values = {} if self.options.clock is None else {"time/sim_s": self.federation.time}
        return values | self.federation.metrics()

    def server_scores(self) -> list[float]:
        """The task's first measure of every server's model on the pooled test."""
        assert self.choice is not None
        rows, servers, evaluator = self.data.global_test, self.federation.present, self.measuring.evaluator
        first = self.client.task.first

        def sums_of(numbers: list[int]) -> Params:
            return stack([{"sums": evaluator.sums(servers[number].measured, rows)[first.name]} for number in numbers])

        with threads(self.choice.evaluation_threads):
            sums = self.ranks.split_work([1] * len(servers), sums_of)["sums"]
        values: list[float] = first.value(sums, torch.full((len(servers),), len(rows), dtype=torch.float64)).tolist()
        return values

    def evaluate(self, cohort: Cohort | None, values: dict[str, float]) -> dict[str, Any]:
        """Measure all users; adds to the round's values and returns the record of each client."""
        assert self.choice is not None
        with threads(self.choice.evaluation_threads):
            measured, records = self.measuring.evaluate(cohort, self.federation.measured)
        values |= measured
        return records

    def commit(
        self,
        number: int,
        values: dict[str, float],
        records: dict[str, Any] | None,
        servers: dict[str, list[Any]] | None = None,
    ) -> None:
        """The round counts. What can fail comes first; the rest is not interrupted, not even by a second Ctrl-C."""
        if servers and records is not None:
            servers = {
                "round": [number] * len(servers["server"]),
                **servers,
                self.client.task.first.name: self.server_scores(),
            }
        if self.folder is not None:
            if records is not None:
                self.folder.append_clients(number, records)
            self.folder.append_metrics(number, self.history.row(values))
        with self.stopping.held():
            self.show_model()
            self.states.commit()
            self.history.add(number, values)
            self.last_records = self.last_records if records is None else records
            if servers and records is not None:
                self.server_history.append(servers)
            self.best.offer(number, values, self.shown_model)
            self.rounds_done = number
            self._count_rounds()
            self.in_round = False  # all that belongs to this round is in place: a checkpoint may be written

    def show_model(self) -> None:
        """Put the model that is measured into the client's net: that is what users, exports and checkpoints find."""
        load(self.client.net, self.device.sent(self.federation.measured))

    def shown_model(self) -> Params:
        """What the net holds then, without asking the device."""
        measured = self.federation.measured
        return {name: measured.get(name, value) for name, value in self.client.net.state_dict().items()}

    # ---- what a round needs ----------------------------------------------------------------------------------------

    @property
    def client(self) -> Client:
        """The algorithm."""
        client = self.trainer.lightning_module
        assert isinstance(client, Client)
        return client

    @property
    def data(self) -> FederatedDataModule:
        """The data."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]  # set by Lightning's data connector
        assert isinstance(data, FederatedDataModule)
        return data

    def open_servers(self) -> list[torch.optim.Optimizer]:
        """The servers, with the net's weights as z^0; returns their optimisers, which Lightning saves and restores."""
        build = self.trainer.server_optimizer.build  # type: ignore[attr-defined]  # FederatedTrainer's
        open_one = partial(Server, self.client.net, build, states=self.states)
        callbacks, options = self._server_callbacks(), self.options
        self.device = Device.of(self.trainer)
        with self.device.client_at_home(self.client):
            self.federation = Federation.of(
                self.client, self.data, open_one, callbacks, options.cloud, options.seed, options.buffer
            )
        return [server.optimizer for server in self.federation.servers]

    @property
    def server(self) -> Server:
        """The one server, or a cloud's first."""
        return self.federation.servers[0]

    def is_due(self, number: int) -> bool:
        """Whether the state after so many rounds is evaluated: every eval_every rounds, and the last."""
        last = number == self.max_epochs or self._time_is_up()
        return number % self.options.eval_every == 0 or last

    def _time_is_up(self) -> bool:
        """Whether Lightning's max_time ends the run with this round, which is then the last."""
        left = [timer.time_remaining() for timer in self._callbacks() if isinstance(timer, Timer)]
        up = any(seconds is not None and seconds <= 0 for seconds in left)
        return self.ranks.broadcast(up) if left else False

    def call(self, server: Server, hook: str, *args: Any) -> None:
        """Call a hook of every callback of a server, in order; most have something to do in one of them only."""
        for callback in server.callbacks:
            if has_hook(callback, hook, ServerCallback):
                with located(f"in round {self.rounds_done + 1}, in {hook} of {type(callback).__name__}"):
                    getattr(callback, hook)(self.trainer, self.client, *args)

    def profile(self, phase: str) -> AbstractContextManager[object]:
        """Lightning's profiler, over a phase of the round."""
        profiler: Profiler = self.trainer.profiler  # type: ignore[attr-defined]  # set by Lightning's constructor
        return profiler.profile(f"[fedlit] {phase}")

    def _server_callbacks(self) -> list[ServerCallback]:
        return [callback for callback in self._callbacks() if isinstance(callback, ServerCallback)]

    def _is_overridden(self, hook: str) -> bool:
        """Whether any callback has something to do in a hook of Lightning's."""
        return any(has_hook(callback, hook, Callback) for callback in self._callbacks())

    def _callbacks(self) -> list[Callback]:
        callbacks: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]  # set by Lightning's connector
        return callbacks

    def at_round_end(self, action: Callable[[], None]) -> None:
        """Run the action now, or, inside a round, as soon as the round is complete."""
        if self.in_round:
            self._postponed.append(action)
        else:
            action()

    # ---- Lightning's fit loop --------------------------------------------------------------------------------------

    def setup_data(self) -> None:
        """Engine and evaluator instead of data loaders."""
        if self._ready:
            return
        self.max_batches = 1
        self.trainer.val_check_batch = float("inf")
        client, data, options = self.client, self.data, self.options
        client.prepare()
        data.cast(at_least_single(next(client.net.parameters()).dtype))
        bytes_needed = data.num_clients * sum(v.numel() * v.element_size() for v in client.net.state_dict().values())
        fits = (
            bytes_needed <= LOCAL_MODELS_BYTES if options.store_local_models == "auto" else options.store_local_models
        )
        # A fresh client is never met again; the one that holds all data is not a user.
        self.keeps_local_models = fits and not data.is_fresh and not client.pools_data
        if not fits:
            why = (
                f"{bytes_needed / 1e9:.1f} GB"
                if options.store_local_models == "auto"
                else "store_local_models is false"
            )
            log.info(f"The clients' models are not kept ({why}), so local/* and personal/* are not measured.")
        self.population: FederatedDataModule | Pooled = Pooled(data) if client.pools_data else data
        needs = client.needs.union(
            self.weighting.needs if self.weighting is not None else (),
            *(callback.needs for callback in self.server.callbacks),
        )
        models = UserModels.of(client, self.federation, keeps_local=self.keeps_local_models)
        self.gathering = Gathering(client, self.population, options, self.profile)
        self.ranks.profile = self.profile
        self._place_states()
        if self.choice is None:
            with self.device.client_at_home(client):
                self.choice = Choice(**self.ranks.broadcast(asdict(self._choose())))
        log.info(self.choice.line())
        log.info(self._room.line(self.choice))
        self.device = self.device.settled(
            self.choice.accelerator, client, [server.optimizer for server in self.federation.servers]
        )
        self.best.measure = client.task.first
        forward = make_forward(self.choice, client, data.plain_rows, self.device, self.ranks)
        self.measuring = Measuring(client, data, models, self.measures, self.ranks, self.device, forward)
        engine = make_engine(self.choice, options.seed, data.rows, self.device)
        engine.tally = self.tally
        if self.ranks.size > 1:
            engine = DistributedEngine(engine, self.ranks)
        self.training = Training(client, self.population, self.gathering, engine, self.measuring.evaluator, needs)
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(self.choice.threads)
        self.history.columns = [
            *round_columns(client, self.measuring.parts),
            *(["time/sim_s"] if options.clock is not None else []),
            *self.federation.metrics(),
            *(name for callback in self.server.callbacks for name in callback.metrics),
        ]
        if self.folder is not None:
            self.folder.start_metrics(self.history.columns, self.history.numbered())
        self._ready = True

    def _place_states(self) -> None:
        """Rows of clients in memory or on disk; what a resumed run has elsewhere is moved."""
        asked, ranks = self.options.states, self.ranks
        shared = ranks.broadcast(self.folder.checkpoints if self.folder is not None else None)
        folder = Path(shared) if shared is not None else None
        is_on_disk, line = ranks.broadcast(on_disk(asked, self._need(folder))) if asked != "memory" else (False, None)
        if line is not None:
            log.info(line)
        if is_on_disk and folder is not None:
            self.states.keep_on_disk(folder, ranks)
        else:
            self.states.keep_in_memory()

    def _need(self, folder: Path | None) -> Need:
        """What rows would take: those of a first cohort, for everybody who may be met."""
        servers, ranks = self.federation.servers, self.ranks
        [cohort] = self.gathering.cohorts(servers[:1])
        cohort.params, cohort.buffers = cohort.received, cohort.received_buffers
        kept = sum(value.numel() * value.element_size() for value in self.rows(cohort).values())
        met = (self.max_epochs or 1) * len(cohort.clients) * len(servers)
        return Need(
            clients=min(met, self.data.num_clients),
            row_bytes=kept / max(1, len(cohort.clients)),
            processes=ranks.here,
            obstacle=obstacle(folder, ranks.size // ranks.here),
        )

    def _choose(self) -> Choice:
        """The engine, from a first cohort's work; a run that had another number of processes keeps its form."""
        client, data, ranks, options = self.client, self.data, self.ranks, self.options
        request = options.request
        if self._begun_with is not None:
            request = resumed_request(self._begun_with, request)
        planned = client.planned_steps(self.population.sizes.numpy())
        sample = data.rows(data.store, torch.zeros(1, dtype=torch.int64))[0][0]
        cohorts = self.gathering.cohorts(self.federation.servers)
        trained = self.federation.trained_at_once(cohorts)
        if trained < ranks.size:
            log.info(
                f"{ranks.size - trained} of {ranks.size} processes are idle: only {trained} clients train in a round."
            )
        rounds = self.max_epochs or 1
        return choose(
            request,
            client,
            planned,
            trained,
            rounds,
            sample,
            shares=self.gathering.work_shares(cohorts),
            evaluated_rows=CHUNK,
            measured_rows=rows_to_measure(data, 1 + rounds // options.eval_every, trained * options.eval_every),
            room=self._room,
            device=self.device,
        )

    @property
    def _room(self) -> Room:
        return Room(self.ranks.size, self.ranks.here, self.options.request.threads)

    @property
    def done(self) -> bool:
        """Also after an interrupt: the round was finished, the run can be resumed."""
        return self.stopped or super().done

    @property
    def stopped(self) -> bool:
        """Whether the run was asked to stop, and all ranks know it."""
        return self.stopping.asked if self.ranks.size == 1 else self._stop_agreed

    def reset(self) -> None:
        """Nothing to rewind: a run always continues at a round's beginning."""
        torch.set_grad_enabled(True)

    def on_run_start(self) -> None:
        """Measure the initial model first: row 0 of every file and logger."""
        super().on_run_start()
        if self.ranks.size > 1:
            self.stopping.take_sigterm()
        if not self.history.rows:
            now = time.perf_counter()
            with self.transaction([]):
                values, records = self.measure(None, now, now)
                self.commit(0, values, records)
            self._publish(values)
        self._agree_to_stop()

    def on_advance_start(self) -> None:
        """Lightning's epoch-start hooks, without loaders."""
        self.epoch_progress.increment_ready()
        call._call_callback_hooks(self.trainer, "on_train_epoch_start")
        call._call_lightning_module_hook(self.trainer, "on_train_epoch_start")
        self.epoch_progress.increment_started()
        call._call_callback_hooks(self.trainer, "on_train_batch_start", None, 0)

    def on_advance_end(self) -> None:
        """Lightning's epoch-end hooks; SIGTERM ends the run as Ctrl-C does, at the round's end."""
        call._call_callback_hooks(self.trainer, "on_train_batch_end", None, None, 0)
        postponed, self._postponed = self._postponed, []
        for action in postponed:
            action()
        self.epoch_loop._batches_that_stepped += 1  # Lightning logs at the count less one; ours is the round already
        try:
            super().on_advance_end()
        except SIGTERMException:
            self.stopping.asked = True
        finally:
            self.epoch_loop._batches_that_stepped -= 1
        self._agree_to_stop()

    def _agree_to_stop(self) -> None:
        """All ranks stop after the same round, whichever of them was asked."""
        if self.ranks.size > 1:
            self._stop_agreed, stop = self.ranks.any_rank([self.stopping.asked, self.trainer.should_stop])
            self.trainer.should_stop = stop

    def teardown(self) -> None:
        """Give the threads back."""
        super().teardown()
        if self._ready:
            torch.set_num_threads(self._threads_before)

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]  # Lightning adds prefixes for child loops
        """The state at a round's end."""
        return {
            "rounds": self.rounds_done,
            "federation": self.federation.state_dict(),
            "clients": self.states.state_dict(),
            "history": self.history.state_dict(),
            "servers": self.server_history.state_dict(),
            "best": self.best.state_dict(),
            "first_risk": self.first_risk,
            "initial": self.server.initial if self.uses_initial else {},
            "personal": asdict(self.client.personal_model()),
            "stopped_of": self.max_epochs if self.trainer.should_stop else None,
            "engine": {"choice": asdict(self.choice), "request": asdict(self.options.request)} if self.choice else None,
        }

    def load_state_dict(self, state_dict: dict[str, Any], prefix: str = "") -> None:
        """Continue after `rounds` rounds; all of Lightning's counters say the same."""
        self.rounds_done = rounds = state_dict["rounds"]
        self.federation.load_state_dict(state_dict["federation"])
        for server in self.federation.servers:
            server.initial = state_dict["initial"] or server.initial
        path = self.trainer.ckpt_path
        self.states.load_state_dict(state_dict["clients"], Path(path).parent if path else None, self.ranks)
        self.history.load_state_dict(state_dict["history"])
        self.server_history.load_state_dict(state_dict["servers"])
        self.best.load_state_dict(state_dict["best"])
        self.first_risk = state_dict["first_risk"]
        # A run that a callback ended early is finished, unless more rounds are asked for than it was given.
        self.trainer.should_stop = state_dict["stopped_of"] == self.max_epochs
        if state_dict["engine"] is not None:
            check_same_engine(state_dict["engine"], self.options.request, self.ranks.size)
            self._continue_with(Choice(**state_dict["engine"]["choice"]), state_dict["engine"])
        counters = {"ready": rounds, "started": rounds, "processed": rounds, "completed": rounds}
        self.epoch_progress.load_state_dict({"total": counters, "current": counters})
        self._count_rounds()
        self.show_model()

    def _continue_with(self, choice: Choice, recorded: dict[str, Any]) -> None:
        """The engine of the run so far, or, with other processes or elsewhere, one of the same form."""
        elsewhere = not stays(recorded, self.options.request)
        if choice.processes == self.ranks.size and not elsewhere:
            self.choice = choice
            return
        self.choice, self._begun_with = None, recorded
        had, has = f"{choice.processes} processes", str(self.ranks.size)
        if elsewhere:
            now = "gpu" if self.options.request.accelerator == "gpu" else "cpu"
            had, has = f"{had} on {choice.accelerator}", f"{has} on {now}"
        log.info(
            f"This run had {had} so far and goes on with {has}: its numbers agree up to rounding (1e-10 in float64), "
            "not in every bit."
        )

    @property
    def uses_initial(self) -> bool:
        """Whether a client that takes part for the first time later on still needs z^0."""
        return INITIAL in self.client.state_spec().values() or any(c.uses_initial for c in self.server.callbacks)

    def _count_rounds(self) -> None:
        """global_step = rounds: ModelCheckpoint skips a save when it has not moved."""
        self.epoch_loop.manual_optimization.optim_step_progress.total.completed = self.rounds_done
        self.epoch_loop._batches_that_stepped = self.rounds_done

    def _publish(self, values: dict[str, float]) -> None:
        """To callbacks (callback_metrics) and loggers, with the round as explicit step."""
        connector = self.trainer._logger_connector
        tensors = dict(zip(values, torch.tensor(list(values.values()), dtype=torch.float64).unbind(), strict=True))
        connector._callback_metrics.update(tensors)
        connector.log_metrics(dict(tensors), step=self.rounds_done)

    def _call_validation_hooks(self) -> None:
        """Lightning's validation hooks, on rounds that are due: EarlyStopping and ModelCheckpoint listen to them."""
        self.trainer.validating = True
        for hook in ("start", "epoch_start", "epoch_end", "end"):
            call._call_callback_hooks(self.trainer, f"on_validation_{hook}")
            call._call_lightning_module_hook(self.trainer, f"on_validation_{hook}")
        self.trainer.training = True


def has_hook(callback: Callback, hook: str, base: type[Callback]) -> bool:
    """Whether a callback has something to do in a hook that its base leaves empty; Lightning's own check takes long."""
    return getattr(type(callback), hook) is not getattr(base, hook) or hook in vars(callback)
