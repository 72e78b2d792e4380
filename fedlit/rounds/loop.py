"""FederatedLoop: Lightning's hooks around a `Round`. The only file that touches protected names of Lightning's loops.

It subclasses Lightning's fit loop, so that callbacks, loggers and checkpoints find what they expect; one Lightning
*epoch* is one *round*. A checkpoint always holds the state at a round's end; one that is requested inside a round is
written at its end. `tests/test_private_names.py` lists the protected names that are used here, and
`tests/rounds/test_loop_contract.py` says what each must do.
"""

from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import Timer
from pytorch_lightning.loops.fit_loop import _FitLoop
from pytorch_lightning.profilers import Profiler
from pytorch_lightning.trainer import call
from pytorch_lightning.utilities.exceptions import SIGTERMException

from fedlit.client.base import Client
from fedlit.client.states import INITIAL, ClientStates
from fedlit.data.base import FederatedDataModule
from fedlit.engines.choose import EngineChoice
from fedlit.engines.device import Device
from fedlit.engines.progress import TrainingProgress
from fedlit.errors import located, understood
from fedlit.evaluation.history import Best, History
from fedlit.evaluation.round_evaluator import EvaluationOptions, RoundEvaluator
from fedlit.params import clone, copy_into
from fedlit.ranks import Ranks
from fedlit.results.folder import RunFolder
from fedlit.rounds.assembly import Assembly, RoundParts, create_protocol
from fedlit.rounds.gathering import RoundOptions
from fedlit.rounds.interrupts import StopRequest
from fedlit.rounds.protocol import ServerProtocol
from fedlit.rounds.round import Round
from fedlit.rounds.run_state import RunState, check_begun_by
from fedlit.server.base import ServerCallback, has_hook
from fedlit.server.server import Server
from fedlit.server.weights import Weighting


class FederatedLoop(_FitLoop):
    """Rounds instead of epochs (`round.Round`)."""

    round_class: type[Round] = Round
    """The class that plays a round; another one if clients are elsewhere."""
    begun_by = ""
    """Key that a loop with other rounds than these has in its checkpoints: a run keeps its loop."""
    round: Round
    parts: RoundParts
    """The parts that play rounds; set by `setup_data`."""

    def __init__(
        self, trainer: Trainer, rounds: int, options: RoundOptions, measures: EvaluationOptions | None = None
    ) -> None:
        super().__init__(trainer, max_epochs=rounds)
        self.options = options
        self.measures = measures or EvaluationOptions()
        self.weighting: Weighting | None = None
        self.folder: RunFolder | None = None
        self.state = RunState()
        self.stop_request = StopRequest()
        self.device = Device()
        self.ranks = Ranks()
        self.progress = TrainingProgress()
        self._stop_agreed = False
        self._ready = False
        self._closing = ExitStack()

    # ---- one round -------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """One round: the whole of it, or nothing."""
        try:
            record = self.round.play()
        except StopIteration as error:  # Lightning would end the run silently
            raise RuntimeError(f"Round {self.rounds_done + 1} raised StopIteration.") from error
        with self.profile("log"):
            self._publish(record.values)
        if self.is_due(self.rounds_done):
            self._call_validation_hooks()

    def is_due(self, number: int) -> bool:
        """Whether the state after so many rounds is evaluated: every eval_every rounds, and after the last."""
        return self.is_last(number) or number % self.options.eval_every == 0

    def is_last(self, number: int) -> bool:
        """Whether the run ends after so many rounds, as far as it is known before it does."""
        return number == self.max_epochs or self._time_is_up()

    def _time_is_up(self) -> bool:
        """Whether Lightning's max_time ends the run after this round."""
        left = [timer.time_remaining() for timer in self._callbacks() if isinstance(timer, Timer)]
        up = any(seconds is not None and seconds <= 0 for seconds in left)
        return self.ranks.broadcast(up) if left else False

    def call(self, server: Server, hook: str, *args: Any) -> None:
        """Call a hook of every callback of a server, in order, unless the callback leaves it empty."""
        for callback in server.callbacks:
            if has_hook(callback, hook, ServerCallback):
                with located(f"in round {self.rounds_done + 1}, in {hook} of {type(callback).__name__}"):
                    getattr(callback, hook)(self.trainer, self.client, *args)

    def profile(self, phase: str) -> AbstractContextManager[object]:
        """Lightning's profiler, over a phase of the round."""
        profiler: Profiler = self.trainer.profiler  # type: ignore[attr-defined]  # set by Lightning's constructor
        return profiler.profile(f"[fedlit] {phase}")

    def awaits_optimizer_step(self) -> bool:
        """Whether any callback overrides Lightning's hook before an optimiser's step."""
        return any(has_hook(callback, "on_before_optimizer_step", Callback) for callback in self._callbacks())

    def before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Lightning's hook before an optimiser's step."""
        call._call_callback_hooks(self.trainer, "on_before_optimizer_step", optimizer)

    def count_rounds(self) -> None:
        """global_step = rounds: ModelCheckpoint skips a save when it has not moved."""
        self.epoch_loop.manual_optimization.optim_step_progress.total.completed = self.rounds_done
        self.epoch_loop._batches_that_stepped = self.rounds_done

    def _server_callbacks(self) -> list[ServerCallback]:
        return [callback for callback in self._callbacks() if isinstance(callback, ServerCallback)]

    def _callbacks(self) -> list[Callback]:
        callbacks: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]  # set by Lightning's connector
        return callbacks

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

    def create_servers(self) -> list[torch.optim.Optimizer]:
        """The servers, with the net's weights as z^0; returns their optimisers, which Lightning saves and restores."""
        self.device = Device.of(self.trainer)
        with self.device.client_at_home(self.client):
            self.state.protocol = self.create_protocol()
        self.state.global_model = clone(self.server.model)
        return [server.optimizer for server in self.federation.servers]

    def create_protocol(self) -> ServerProtocol:
        """The servers, and the protocol that decides which of them steps next."""
        build = self.trainer.server_optimizer.build  # type: ignore[attr-defined]  # FederatedTrainer's
        return create_protocol(self.client, self.data, build, self._server_callbacks(), self.states, self.options)

    def assemble(self) -> RoundParts:
        """The parts that play rounds."""
        assert self.weighting is not None, "the trainer sets it before a run"
        return Assembly(
            client=self.client,
            data=self.data,
            options=self.options,
            measures=self.measures,
            weighting=self.weighting,
            state=self.state,
            ranks=self.ranks,
            device=self.device,
            progress=self.progress,
            folder=self.folder,
            rounds=self.max_epochs or 1,
            profile=self.profile,
            closing=self._closing,
        ).assemble()

    # ---- Lightning's fit loop --------------------------------------------------------------------------------------

    def setup_data(self) -> None:
        """Set up engine and evaluator, instead of data loaders."""
        if self._ready:
            return
        self.max_batches = 1
        self.trainer.val_check_batch = float("inf")
        self.ranks.profile = self.profile
        self.parts = self.assemble()
        self.device = self.parts.device
        self.round = self.round_class(self.state, self.parts, self)
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(self.parts.choice.threads)
        self.history.columns = self.parts.columns
        if self.folder is not None:
            self.folder.start_metrics(self.history.columns, self.history.numbered())
        self._ready = True

    @property
    def done(self) -> bool:
        """Whether the run ends here: as Lightning says, or after an interrupt, at the end of the round."""
        return self.stopped or super().done

    @property
    def stopped(self) -> bool:
        """Whether the run was asked to stop and all ranks have agreed."""
        return self.stop_request.asked if self.ranks.size == 1 else self._stop_agreed

    def reset(self) -> None:
        """A run always continues at a round's beginning, so only gradients are switched on."""
        torch.set_grad_enabled(True)

    def on_run_start(self) -> None:
        """Measure the initial model first: row 0 of every file and logger."""
        super().on_run_start()
        if self.ranks.size > 1:
            self.stop_request.take_sigterm()
        if not self.history.rows:
            self._publish(self.round.measure_initial_model().values)
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
        postponed, self.state.postponed = self.state.postponed, []
        for action in postponed:
            action()
        self.epoch_loop._batches_that_stepped += 1  # Lightning logs at the count less 1; our count is the round
        try:
            super().on_advance_end()
        except SIGTERMException:
            self.stop_request.asked = True
        finally:
            self.epoch_loop._batches_that_stepped -= 1
        self._agree_to_stop()

    def _agree_to_stop(self) -> None:
        """Let all ranks stop after the same round, if any of them was asked to."""
        if self.ranks.size > 1:
            self._stop_agreed, stop = self.ranks.any_rank([self.stop_request.asked, self.trainer.should_stop])
            self.trainer.should_stop = stop

    def teardown(self) -> None:
        """Restore the number of threads, and what the run changed in the data and the net."""
        super().teardown()
        self._closing.close()
        if self._ready:
            torch.set_num_threads(self._threads_before)

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]  # Lightning adds prefixes for child loops
        """The state at a round's end."""
        return self.state.state_dict() | {
            "initial": self.server.initial if self.uses_initial else {},
            "personal": asdict(self.client.personal_model()),
            "stopped_of": self.max_epochs if self.trainer.should_stop else None,
            "engine": {"choice": asdict(self.choice), "request": asdict(self.options.request)} if self.choice else None,
        }

    def load_state_dict(self, state_dict: dict[str, Any], prefix: str = "") -> None:
        """Continue after the checkpoint's rounds, and set all of Lightning's counters to them."""
        with understood(self.trainer.ckpt_path):
            self._restore(state_dict)

    def _restore(self, state_dict: dict[str, Any]) -> None:
        path = self.trainer.ckpt_path
        check_begun_by(state_dict, self.begun_by)
        self.state.load_state_dict(state_dict, Path(path).parent if path else None, self.ranks)
        for server in self.federation.servers:
            server.initial = state_dict["initial"] or server.initial
        # A run that a callback ended early is finished, unless more rounds are asked for than it was given.
        self.trainer.should_stop = state_dict["stopped_of"] == self.max_epochs
        if state_dict["engine"] is not None:
            self.state.continue_with(state_dict["engine"], self.options.request, self.ranks.size)
        rounds = self.rounds_done
        counters = {"ready": rounds, "started": rounds, "processed": rounds, "completed": rounds}
        self.epoch_progress.load_state_dict({"total": counters, "current": counters})
        self.count_rounds()
        self.state.global_model = clone(self.federation.global_model)
        copy_into(self.client.net, self.device.sent(self.state.global_model))

    @property
    def uses_initial(self) -> bool:
        """Whether z^0 is still needed later: by a client that takes part for the first time, or by a callback."""
        return INITIAL in self.client.first_values().values() or any(c.uses_initial for c in self.server.callbacks)

    def _publish(self, values: dict[str, float]) -> None:
        """Give the values to callbacks (callback_metrics) and loggers, with the round as explicit step."""
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

    # ---- attributes of the run --------------------------------------------------------------------------------------

    @property
    def rounds_done(self) -> int:
        """Finished rounds."""
        return self.state.rounds_done

    @property
    def federation(self) -> ServerProtocol:
        """The servers, and their clocks."""
        return self.state.protocol

    @property
    def server(self) -> Server:
        """The one server, or a cloud's first."""
        return self.state.server

    @property
    def states(self) -> ClientStates:
        """What clients keep between rounds."""
        return self.state.clients

    @property
    def history(self) -> History:
        """The rows of metrics.csv."""
        return self.state.history

    @property
    def best(self) -> Best:
        """The best round so far."""
        return self.state.best

    @property
    def choice(self) -> EngineChoice | None:
        """The engine, once it is chosen."""
        return self.state.choice

    @property
    def round_evaluator(self) -> RoundEvaluator:
        """Measures models."""
        return self.parts.round_evaluator
