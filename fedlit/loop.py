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

from fedlit.client import Client
from fedlit.cohort import Cohort
from fedlit.data.base import FederatedDataModule
from fedlit.divergence import check_divergence
from fedlit.engines.choose import Choice, Request, check_same_engine, choose, make_engine
from fedlit.evaluate import Evaluator
from fedlit.history import (
    Best,
    History,
    extreme_user_metrics,
    local_metrics,
    round_columns,
    round_metrics,
    user_records,
)
from fedlit.keys import Purpose, Stream
from fedlit.params import Params, clone, expand, with_prefix
from fedlit.run import RunFolder
from fedlit.server.aggregate import averaged_buffers, pseudo_gradient, server_step
from fedlit.server.base import ServerCallback
from fedlit.server.sampling import Sampler
from fedlit.server.weights import Weighting
from fedlit.states import ClientStates

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
        self.call("on_cohort_start", cohort)
        for phase in self.client.phases():
            self.engine.train(self.client, cohort, self.data.load(cohort.round, cohort.clients), phase)
        trained = time.perf_counter()
        self.first_risk = check_divergence(cohort, self.first_risk, self.options.divergence_factor)
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
        round, options, sizes = self.rounds_done, self.options, self.data.sizes
        selection = options.sampler.select(options.seed, round, sizes.numpy(), options.clients_per_round)
        chosen, reporting = selection.train, set(selection.report)
        received = expand(z, len(chosen))
        buffers = expand(clone(dict(self.client.net.named_buffers())), len(chosen))
        own_sizes = sizes[chosen]
        planned = self.client.planned_steps(own_sizes.numpy())
        steps = self.client.local_work(planned, self._stream.at(options.seed, Purpose.WORK, round=round))
        return Cohort(
            round=round,
            clients=chosen,
            reports=torch.tensor([client in reporting for client in chosen]),
            population=self.data.num_clients,
            sizes=own_sizes,
            steps=torch.from_numpy(steps),
            lr=self.client.rate(round),
            received=received,
            received_buffers=buffers,
            state=self.states.rows(chosen, self.client.initial_rows(received)),
        )

    def weigh(self, cohort: Cohort) -> float:
        """Fill the cohort's weights; returns the length of the server's step."""
        assert self.weighting is not None
        weighed = self.weighting.weigh(cohort)
        cohort.weights = weighed.weights
        return weighed.step

    def commit(self, cohort: Cohort) -> None:
        """z moves, the cohort's rows are kept, the round counts: nothing that is saved changes before or between."""
        server_step(self.client.net, self.trainer.optimizers[0], cohort.pseudo_gradient)
        buffers = averaged_buffers(cohort)
        for name, buffer in self.client.net.named_buffers():
            buffer.copy_(buffers[name])
        rows = dict(cohort.state)
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
        metrics, users = self.evaluator.global_model()
        values |= metrics
        if cohort is not None and self.evaluator.has_own_tests:
            values |= extreme_user_metrics(cohort, users)
        local = None
        if self.keeps_local_models:
            local = self.evaluator.local_models(self.local_model, users)
            values |= local_metrics(local)
        return user_records(cohort, self.data, self.states, users, local)

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
        self.keeps_local_models = fits and not data.is_fresh  # a fresh client is never met again
        if not fits:
            log.info(f"Local models are not kept ({bytes_needed / 1e9:.1f} GB): no local/* and personal/* metrics.")
        self.evaluator = Evaluator(client, data)
        self.evaluator.changed(self.states.touched)
        if self.choice is None:
            planned = client.planned_steps(data.sizes.numpy())
            sample = data.rows(data.store, torch.zeros(1, dtype=torch.int64))[0][0]
            count = options.sampler.cohort_size(options.clients_per_round, data.num_clients)
            self.choice = choose(options.request, client, planned, count, self.max_epochs or 1, sample)
        log.info(self.choice.line())
        self.engine = make_engine(self.choice, options.seed, data.rows)
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(self.choice.threads)
        self.history.columns = [
            *round_columns(
                client,
                validated=len(data.global_val) > 0,
                local=self.keeps_local_models,
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
        # A run that a callback ended early is finished, unless more rounds are asked for than it was given.
        self.trainer.should_stop = state_dict["stopped_of"] == self.max_epochs
        if state_dict["engine"] is not None:
            check_same_engine(state_dict["engine"], self.options.request)
            self.choice = Choice(**state_dict["engine"]["choice"])
        counters = {"ready": rounds, "started": rounds, "processed": rounds, "completed": rounds}
        self.epoch_progress.load_state_dict({"total": counters, "current": counters})
        self.epoch_loop.manual_optimization.optim_step_progress.total.completed = self.rounds_done
        self.epoch_loop._batches_that_stepped = self.rounds_done

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
