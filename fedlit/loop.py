"""FederatedLoop: one advance() is one round. The only file that touches Lightning's protected names.

It subclasses Lightning's fit loop, so that callbacks, loggers and checkpoints find what they expect; one Lightning
*epoch* is one *round*. What it saves is always the state at a round's end: a round changes nothing that is saved until
`commit`, and a checkpoint that is asked for inside a round is written at its end.
`tests/test_loop_contract.py` names every protected name that is used here.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import Timer
from pytorch_lightning.loops.fit_loop import _FitLoop
from pytorch_lightning.trainer import call
from pytorch_lightning.utilities.exceptions import SIGTERMException
from torch import Tensor

from fedlit.client import Client, Personal, Phase
from fedlit.cohort import Cohort, Selection
from fedlit.data.base import ClientData, FederatedDataModule
from fedlit.data.pooled import Pooled
from fedlit.divergence import check_divergence
from fedlit.engines.choose import Choice, Request, check_same_engine, choose, make_engine
from fedlit.evaluate import Evaluator
from fedlit.history import (
    Best,
    History,
    extreme_user_metrics,
    local_metrics,
    personal_metrics,
    round_columns,
    round_metrics,
    user_records,
)
from fedlit.keys import Purpose, Stream
from fedlit.params import Params, clone, expand, under_prefix, with_prefix
from fedlit.run import RunFolder
from fedlit.server.aggregate import averaged_buffers, pseudo_gradient, server_step
from fedlit.server.base import ServerCallback
from fedlit.server.sampling import Sampler
from fedlit.server.weights import Weighting
from fedlit.states import INITIAL, ClientStates

log = logging.getLogger("fedlit")

LOCAL_MODELS_BYTES = 1e9
"""`store_local_models: auto` keeps every client's last model up to this much memory."""


@dataclass(frozen=True)
class RoundOptions:
    """What the trainer's arguments say about a round."""

    clients_per_round: int
    sampler: Sampler
    eval_every: int
    divergence_factor: float
    store_local_models: Literal["auto"] | bool
    seed: int
    request: Request = field(default_factory=Request)


class FederatedLoop(_FitLoop):
    """Rounds instead of epochs:

    for round in range(rounds):
        who      the sampler draws a cohort from (seed, round)
        train    the engine runs every client's local solve
        after    dual ascent, control variates … (hook on_cohort_trained)
        weigh    the weighting says how much each client counts
        step     the server's optimiser moves z along the pseudo-gradient
        keep     the cohort's rows; everyone else is untouched
        measure  metrics, on the rounds that are due
    """

    def __init__(self, trainer: Trainer, rounds: int, options: RoundOptions) -> None:
        super().__init__(trainer, max_epochs=rounds)
        self.options = options
        self.weighting: Weighting | None = None
        self.folder: RunFolder | None = None
        self.rounds_done = 0
        self.interrupted = False
        self.in_round = False
        self.states = ClientStates()
        self.history = History()
        self.best = Best()
        self.first_risk: float | None = None
        self.initial: Params = {}
        self.choice: Choice | None = None
        self._stream = Stream()
        self._ready = False
        self._postponed: list[Callable[[], None]] = []

    # ---- one round -------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """One round. If it fails before `commit`, nothing that is saved has changed."""
        self.in_round = True
        try:
            self.play_round()
        finally:
            self.in_round = False

    def play_round(self) -> None:
        """The phases of a round, in order."""
        started = time.perf_counter()
        z = self.global_params()
        cohort = self.gather(z)
        data = self.population.load(cohort.round, cohort.clients)
        if "risk_received" in self.needs:
            cohort.risk_received = self.evaluator.risks(cohort.received | cohort.received_buffers, data.train)
        if "grad_received" in self.needs:
            cohort.grad_received = self.evaluator.gradients(cohort.received | cohort.received_buffers, data.train)
        self.call("on_cohort_start", cohort)
        for phase in self.client.phases():
            self.solve(cohort, data, phase)
        trained = time.perf_counter()
        self.first_risk = check_divergence(cohort, self.first_risk, self.options.divergence_factor)
        if "risk_trained" in self.needs:
            cohort.risk_trained = self.evaluator.risks(cohort.params | cohort.buffers, data.train)
        self.call("on_cohort_trained", cohort)
        step = self.weigh(cohort)
        cohort.pseudo_gradient = pseudo_gradient(z, cohort, step)
        self.call("on_pseudo_gradient", cohort)
        call._call_callback_hooks(self.trainer, "on_before_optimizer_step", self.trainer.optimizers[0])
        self.commit(cohort)
        self.call("on_server_step_end", cohort)
        self.measure(cohort, started, trained)

    def gather(self, z: Params) -> Cohort:
        """Who trains, what they received, what they kept."""
        round, client = self.rounds_done, self.client
        sizes, population = self.population.sizes, self.population.num_clients
        selection = self.select(round)
        chosen, reporting = selection.train, set(selection.report)
        received, buffers = self.received(z, chosen)
        own_sizes = sizes[chosen]
        cohort = Cohort(
            round=round,
            clients=chosen,
            reports=torch.tensor([client in reporting for client in chosen]),
            population=population,
            sizes=own_sizes,
            steps=torch.zeros_like(own_sizes),
            lr=client.rate(round),
            received=received,
            received_buffers=buffers,
            state=self.states.rows(chosen, client.initial_rows(client.state_spec(), received, self.initial)),
            sent=client.initial_rows(client.sent_spec(), received, self.initial),
            own=client.own_tensors,
        )
        cohort.steps = self.steps(cohort, "local_work")
        if client.keep_optimizer:
            cohort.memory = self.kept_memory(cohort)
        return cohort

    def select(self, round: int) -> Selection:
        """Who trains and who reports in a round: the sampler's answer, which the algorithm may widen."""
        options, sizes = self.options, self.population.sizes.numpy()
        count = 1 if self.client.pools_data else options.clients_per_round
        drawn = options.sampler.select(options.seed, round, sizes, count)
        generator = self._stream.at(options.seed, Purpose.COHORT, round=round, index=1)
        return self.client.select(drawn, len(sizes), generator)

    def received(self, z: Params, chosen: list[int]) -> tuple[Params, Params]:
        """Stacked: the parameters and buffers with which each client starts; what stays with it is its own."""
        params = expand(z, len(chosen))
        buffers = expand(clone(dict(self.client.net.named_buffers())), len(chosen))
        if not self.client.own_tensors:
            return params, buffers
        own = {name: value for name, value in (params | buffers).items() if name in self.client.own_tensors}
        rows = params | buffers | under_prefix("own", self.states.rows(chosen, with_prefix("own", own)))
        return {name: rows[name] for name in params}, {name: rows[name] for name in buffers}

    def steps(self, cohort: Cohort, work_method: str) -> Tensor:
        """(clients,) local steps of a phase; phases of one round draw the same numbers."""
        generator = self._stream.at(self.options.seed, Purpose.WORK, round=cohort.round)
        planned = self.client.planned_steps(cohort.sizes.numpy())
        return torch.from_numpy(getattr(self.client, work_method)(cohort, planned, generator))

    def kept_memory(self, cohort: Cohort) -> Params:
        """Stacked: the local optimiser's state of each client as its last round left it; new for new clients."""
        start, _ = self.engine.start_of(cohort, self.client.phases()[0])
        fresh = with_prefix("memory", self.client.local_optimizer().init(start))
        return under_prefix("memory", self.states.rows(cohort.clients, fresh))

    def solve(self, cohort: Cohort, data: ClientData, phase: Phase) -> None:
        """One local solve of every client; its result is the model that is sent, or the state that the phase writes."""
        steps = cohort.steps if phase.work_method == "local_work" else self.steps(cohort, phase.work_method)
        solved = cohort.in_phase(steps, cohort.lr if phase.lr is None else phase.lr)
        self.engine.train(self.client, solved, data, phase)
        if phase.writes:
            cohort.state |= with_prefix(phase.writes, solved.params)
            return
        cohort.params, cohort.buffers = solved.params, solved.buffers
        if phase.start != "trained":  # what refines a trained model logs nothing
            cohort.losses = solved.losses
        if self.client.keep_optimizer:
            cohort.memory = solved.memory

    def weigh(self, cohort: Cohort) -> float:
        """Fill the cohort's weights; returns the length of the server's step."""
        assert self.weighting is not None
        weighed = self.weighting.weigh(cohort)
        cohort.weights = weighed.weights
        return weighed.step * self.client.server_lr

    def commit(self, cohort: Cohort) -> None:
        """z moves, the cohort's rows are kept, the round counts: nothing that is saved changes before or between."""
        kept = frozenset() if self.client.average_kept else cohort.own
        gradient = {k: torch.zeros_like(v) if k in kept else v for k, v in cohort.pseudo_gradient.items()}
        server_step(self.client.net, self.trainer.optimizers[0], gradient)
        buffers = averaged_buffers(cohort)
        for name, buffer in self.client.net.named_buffers():
            if name not in kept:
                buffer.copy_(buffers[name])
        rows = dict(cohort.state) | with_prefix("memory", cohort.memory)
        rows |= with_prefix("own", {k: v for k, v in (cohort.params | cohort.buffers).items() if k in cohort.own})
        if self.keeps_local_models or "local" in self.client.state_spec():
            rows |= with_prefix("local", cohort.params) | with_prefix("local", cohort.buffers)
        self.states.update(cohort.clients, rows)
        self.evaluator.changed(cohort.clients)
        self.rounds_done += 1
        self._count_round()

    def measure(self, cohort: Cohort | None, started: float, trained: float) -> None:
        """Metrics of the round, to the history, the run folder, callbacks and loggers."""
        due = self.is_due()
        values = round_metrics(cohort, self.client) if cohort is not None else {}
        evaluated = time.perf_counter()
        records = self.evaluate(cohort, values) if due else None
        now = time.perf_counter()
        if cohort is not None:
            values |= {"time/train_s": trained - started, "time/round_s": now - started}
        if due:
            values["time/eval_s"] = now - evaluated
        self.call("on_round_metrics", cohort, values)
        self.history.check(values)
        self.history.add(self.rounds_done, values)
        self.best.offer(self.rounds_done, values, self.client.net.state_dict())
        if self.folder is not None:
            self.folder.append_metrics(self.rounds_done, self.history.rows[-1])
            if records is not None:
                self.folder.append_clients(self.rounds_done, records)
        self.in_round = False  # all that belongs to this round is in place: a checkpoint may be written
        self._publish(values)
        if due and cohort is not None:
            self._call_validation_hooks()

    def evaluate(self, cohort: Cohort | None, values: dict[str, float]) -> dict[str, Any]:
        """Measure all users; adds to the round's values and returns the record of each client."""
        metrics, users = self.evaluator.global_model(self.evaluated_model())
        if not self.client.own_tensors or self.client.average_kept:  # else z is no whole model
            values |= metrics
            if cohort is not None and self.evaluator.has_own_tests and not self.client.pools_data:
                values |= extreme_user_metrics(cohort, users)
        local = personal = None
        if self.keeps_local_models and self.evaluator.has_own_tests:
            local = personal = self.evaluator.local_models(self.local_model, users)
            values |= local_metrics(local)
        if self.evaluator.has_own_tests and self.client.personal_model() != Personal():
            personal = self.evaluator.personal_models(self.personal_model, self.client.personal_model())
        if personal is not None:
            values |= personal_metrics(personal)
        return user_records(cohort, self.data, self.states, users, local, personal)

    def evaluated_model(self) -> dict[str, Tensor]:
        """What is measured as the global model: z, unless a callback has another."""
        model = self.client.net.state_dict()
        for callback in self._server_callbacks():
            model |= callback.evaluated_model()
        return model

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

    def global_params(self) -> Params:
        """z, copied: what is trained in place must never be the anchor."""
        return clone(dict(self.client.net.named_parameters()))

    def local_model(self, client: int) -> dict[str, Tensor]:
        """The kept model of a touched client, buffers included."""
        return {name: self.states.row(f"local.{name}", client) for name in self.client.net.state_dict()}

    def personal_model(self, user: int) -> dict[str, Tensor]:
        """A user's personal model before any adaptation, buffers included."""
        name, model = self.client.personal_model().model, dict(self.client.net.state_dict())
        if not self.states.has(user):
            untouched = self.client.state_spec().get(name)
            return model | (self.initial if untouched is INITIAL else {})
        if name == "global":
            return model | {own: self.states.row(f"own.{own}", user) for own in self.client.own_tensors}
        if self.keeps_local_models:
            model = self.local_model(user)
        return model | {
            key: self.states.row(f"{name}.{key}", user) for key in model if self.states.keeps(f"{name}.{key}")
        }

    def is_due(self) -> bool:
        """Whether the state after `rounds_done` rounds is evaluated: every eval_every rounds, and the last."""
        last = self.rounds_done == self.max_epochs or self._time_is_up()
        return self.rounds_done % self.options.eval_every == 0 or last

    def _time_is_up(self) -> bool:
        """Whether Lightning's max_time ends the run with this round, which is then the last."""
        left = [timer.time_remaining() for timer in self._callbacks() if isinstance(timer, Timer)]
        return any(seconds is not None and seconds <= 0 for seconds in left)

    def call(self, hook: str, *args: Any) -> None:
        """Call a hook of every server callback, in order."""
        for callback in self._server_callbacks():
            getattr(callback, hook)(self.trainer, self.client, *args)

    def _server_callbacks(self) -> list[ServerCallback]:
        return [callback for callback in self._callbacks() if isinstance(callback, ServerCallback)]

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
        dtype = next(client.net.parameters()).dtype
        data.cast(dtype)
        bytes_needed = data.num_clients * sum(v.numel() * v.element_size() for v in client.net.state_dict().values())
        fits = (
            bytes_needed <= LOCAL_MODELS_BYTES if options.store_local_models == "auto" else options.store_local_models
        )
        # A fresh client is never met again; the one that holds all data is no user.
        self.keeps_local_models = fits and not data.is_fresh and not client.pools_data
        if not fits:
            log.info(f"Local models are not kept ({bytes_needed / 1e9:.1f} GB): no local/* and personal/* metrics.")
        self.population: FederatedDataModule | Pooled = Pooled(data) if client.pools_data else data
        self.needs = client.needs.union(
            self.weighting.needs if self.weighting is not None else (),
            *(callback.needs for callback in self._server_callbacks()),
        )
        if not self.initial:
            self.initial = self.global_params()
        self.evaluator = Evaluator(client, data)
        self.evaluator.changed(self.states.touched)
        if self.choice is None:
            planned = client.planned_steps(self.population.sizes.numpy())
            sample = data.rows(data.store, torch.zeros(1, dtype=torch.int64))[0][0]
            self.choice = choose(
                options.request, client, planned, len(self.select(0).train), self.max_epochs or 1, sample
            )
        log.info(self.choice.line())
        self.engine = make_engine(self.choice, options.seed, data.rows)
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(self.choice.threads)
        self.history.columns = [
            *round_columns(
                client,
                validated=len(data.global_val) > 0,
                local=self.keeps_local_models,
                personal=self.keeps_local_models or client.personal_model() != Personal(),
                tested=self.evaluator.has_own_tests,
            ),
            *(name for callback in self._server_callbacks() for name in callback.metrics),
        ]
        if self.folder is not None:
            self.folder.start_metrics(self.history.columns, self.history.numbered())
        self._ready = True

    @property
    def done(self) -> bool:
        """Also after an interrupt: the round was finished, the run can be resumed."""
        return self.interrupted or super().done

    def reset(self) -> None:
        """Nothing to rewind: a run always continues at a round's beginning."""
        torch.set_grad_enabled(True)

    def on_run_start(self) -> None:
        """Measure the initial model first: row 0 of every file and logger."""
        super().on_run_start()
        if self.rounds_done == 0 and not self.history.rows:
            now = time.perf_counter()
            self.measure(None, now, now)

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
            self.interrupted = True
        finally:
            self.epoch_loop._batches_that_stepped -= 1

    def teardown(self) -> None:
        """Give the threads back."""
        super().teardown()
        if self._ready:
            torch.set_num_threads(self._threads_before)

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]  # Lightning adds prefixes for child loops
        """The state at a round's end."""
        return {
            "rounds": self.rounds_done,
            "clients": self.states.state_dict(),
            "history": self.history.state_dict(),
            "best": self.best.state_dict(),
            "first_risk": self.first_risk,
            "initial": self.initial if self.uses_initial else {},
            "stopped_of": self.max_epochs if self.trainer.should_stop else None,
            "engine": {"choice": asdict(self.choice), "request": asdict(self.options.request)} if self.choice else None,
        }

    def load_state_dict(self, state_dict: dict[str, Any], prefix: str = "") -> None:
        """Continue after `rounds` rounds; all of Lightning's counters say the same."""
        self.rounds_done = rounds = state_dict["rounds"]
        self.states.load_state_dict(state_dict["clients"])
        self.history.load_state_dict(state_dict["history"])
        self.best.load_state_dict(state_dict["best"])
        self.first_risk = state_dict["first_risk"]
        self.initial = state_dict["initial"]
        # A run that a callback ended early is finished, unless more rounds are asked for than it was given.
        self.trainer.should_stop = state_dict["stopped_of"] == self.max_epochs
        if state_dict["engine"] is not None:
            check_same_engine(state_dict["engine"], self.options.request)
            self.choice = Choice(**state_dict["engine"]["choice"])
        counters = {"ready": rounds, "started": rounds, "processed": rounds, "completed": rounds}
        self.epoch_progress.load_state_dict({"total": counters, "current": counters})
        self.epoch_loop.manual_optimization.optim_step_progress.total.completed = self.rounds_done
        self.epoch_loop._batches_that_stepped = self.rounds_done

    @property
    def uses_initial(self) -> bool:
        """Whether a client that takes part for the first time later on still needs z^0."""
        return INITIAL in self.client.state_spec().values() or any(c.uses_initial for c in self._server_callbacks())

    def _count_round(self) -> None:
        """global_step = rounds: ModelCheckpoint skips a save when it has not moved."""
        self.epoch_loop.manual_optimization.optim_step_progress.total.completed += 1
        self.epoch_loop._batches_that_stepped += 1

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
