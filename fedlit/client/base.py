"""Client(LightningModule): the contract that an algorithm fills in.

A client is a net, per-sample losses, a local objective (`training_step`) and local options. It sees the model it
received, its own state rows and its own data, nothing else. What it does not do: visit clients, choose batches,
average. Engines and the loop do that, the same way for every algorithm.

Everything a step reads that differs by client or round (the received model, what the client kept) is a buffer, so the
sequential engine sets it and the vectorized engine maps over it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Literal, Never

import numpy as np
import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.trainer.states import TrainerFn
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value
from torch.nn.modules.batchnorm import _BatchNorm

from fedlit.client.cohort import Cohort, Selection, TrainedCohort
from fedlit.client.local_optimizers import OPTION_DEFAULTS, LocalKind, LocalOptimizer, make_optimizer
from fedlit.client.states import INITIAL, RECEIVED, ModelRow, StateSpec, check_state_names
from fedlit.client.step import Batch, Batches, Personal, Phase, StepOutput, TensorGroup, buffer_name, parse_step_output
from fedlit.client.step_errors import changed_in_place, check_step_output, explain_step_error
from fedlit.client.tasks import LOSSES, Task, find_task
from fedlit.client.weights_file import WeightsFile
from fedlit.errors import ConfigError, require
from fedlit.keys import GeneratorOf
from fedlit.metrics.catalogue import ShownState, declare
from fedlit.params import Params, dot, expand, sq_norm, subtract, with_prefix
from fedlit.recorded import Recorded, refuse_unknown


class _Task(nn.Module):
    """A client's task loss as a module's forward, so that functional_call can replace the net's parameters."""

    def __init__(self, client: "Client") -> None:
        super().__init__()
        self.client = client

    def forward(self, batch: Batch) -> Tensor:
        return self.client.task_loss(batch)


class Client(Recorded, LightningModule):
    """Base of every algorithm; on its own it is federated averaging's client.

    Args:
        net: the network that is trained.
        lr: η: learning rate of the local steps.
        optimizer: of the local steps: sgd, adam, adamw, or aspg, which extrapolates and projects (FedBCD).
        momentum: heavy-ball momentum of sgd; starts at zero in every round.
        extrapolation: ζ: momentum of aspg, x + ζ (x - x_prev); x_prev starts at x in every round.
        box: aspg clips every number of a client's model to [-box, box]; none does not clip.
        betas: β1, β2: how slowly adam and adamw forget gradients and their squares; both memories start at zero in
            every round.
        eps: ε: what adam and adamw add to the root that they divide by.
        weight_decay: L2 penalty added to every local gradient, after clipping; not part of f_i. adamw shortens the
            parameters by it instead.
        l2: strength of a term l2/2 |x|² inside f_i, over all of the net's parameters.
        clip: largest norm of a local gradient; none by default.
        batch_size: rows of a mini-batch.
        local_epochs: E: passes over the client's data in a round.
        local_steps: K: local steps in a round, instead of local_epochs.
        most_steps: K_i: local steps, drawn from 1 to this for each client and round; replaces the two above.
        local_unit: whether the K_i that is drawn counts mini-batch steps or epochs.
        lr_decay: factor on lr from round to round.
        drop_last: leave out a last batch that is not full (a client with fewer rows than a batch keeps its only one).
        keep_optimizer: keep the state of the local optimiser (momentum, x_prev, adam's averages) from round to round.
        keep_local: tensors that stay with each client: none, norm (BatchNorm: FedBN), all (local training only), or the
            name of a module or tensor (FedPer: a head).
        average_kept: let the server average what stays with the clients too, so that z can be measured.
        task: what the net is to learn: classification (unless given), regression, next_token, or a Task of your own.
        init_from: file with the weights that the net begins with: a state dict, or a run's checkpoint.
    """

    weights: str = "samples"
    """Name of the weighting that holds unless the trainer is given another."""
    batches_per_step: int = 1
    """Above 1, a step gets a tuple of that many independent batches."""
    needs: frozenset[str] = frozenset()
    """Of `risk_received`, `risk_trained`, `grad_received`: what the loop measures for it each round."""
    server_lr: float = 1.0
    """Factor on the averaged update, before the server's optimiser takes its step."""
    pools_data: bool = False
    """Whether one client trains on everybody's data: the yardstick without federation."""
    _stepping: bool = False
    _create_servers: Callable[[], list[torch.optim.Optimizer]] | None = None
    """Whether a local step is running."""
    shown_states: Mapping[str, ShownState] = {}
    """Words and curves for numbers of `state_spec`; others are called by their name and have their mean."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        declare(cls.shown_states)

    def __init__(
        self,
        net: nn.Module,
        *,
        lr: float = 0.01,
        optimizer: LocalKind = "sgd",
        momentum: float = 0.0,
        extrapolation: float = 0.0,
        box: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        l2: float = 0.0,
        clip: float | None = None,
        batch_size: int = 20,
        local_epochs: int = 5,
        local_steps: int | None = None,
        most_steps: int | None = None,
        local_unit: Literal["step", "epoch"] = "step",
        lr_decay: float = 1.0,
        drop_last: bool = False,
        keep_optimizer: bool = False,
        keep_local: str = "none",
        average_kept: bool = False,
        task: str | Task | None = None,
        init_from: str | WeightsFile | None = None,
        **unknown: Never,
    ) -> None:
        super().__init__()
        refuse_unknown(self, unknown)
        require(lr > 0, f"model.lr is {lr}, but a learning rate must be above 0.")
        require(0 <= momentum < 1, f"model.momentum is {momentum}; give a number from 0 up to, but not including, 1.")
        require(0 <= extrapolation < 1, f"model.extrapolation is {extrapolation}; give 0 or more and below 1.")
        require(box is None or box > 0, f"model.box is {box}; give a number above 0, or none.")
        require(
            len(betas) == 2 and all(0 <= beta < 1 for beta in betas),
            f"model.betas is {list(betas)}; give two numbers from 0 up to, but not including, 1.",
        )
        require(eps > 0, f"model.eps is {eps}; give a number above 0.")
        require(weight_decay >= 0, f"model.weight_decay is {weight_decay}; give 0 or more.")
        require(l2 >= 0, f"model.l2 is {l2}; give 0 or more.")
        require(clip is None or clip > 0, f"model.clip is {clip}; give a norm above 0, or leave it out.")
        require(batch_size >= 1, f"model.batch_size is {batch_size}; a batch has at least 1 row.")
        require(local_epochs >= 1, f"model.local_epochs is {local_epochs}; give 1 or more.")
        require(local_steps is None or local_steps >= 1, f"model.local_steps is {local_steps}; give 1 or more.")
        require(most_steps is None or most_steps >= 1, f"model.most_steps is {most_steps}; give 1 or more.")
        require(
            local_unit == "step" or local_steps is None,
            "model.local_unit is 'epoch', so K_i counts epochs, but model.local_steps is given. Leave one out.",
        )
        require(
            local_unit == "step" or most_steps is not None,
            "model.local_unit is 'epoch', the unit of the K_i that model.most_steps draws, but no most_steps is given. "
            "Give it, or leave local_unit out: local_epochs is the same number for all.",
        )
        require(0 < lr_decay <= 1, f"model.lr_decay is {lr_decay}; give a factor above 0 and at most 1.")
        self.automatic_optimization = False
        self.net = net
        self.lr = lr
        self.optimizer = optimizer
        self.momentum = momentum
        self.extrapolation = extrapolation
        self.box = box
        self.betas = (betas[0], betas[1])
        self.eps = eps
        self.weight_decay = weight_decay
        self.l2 = l2
        self.clip = clip
        self.batch_size = batch_size
        self.local_epochs = local_epochs
        self.local_steps = local_steps
        self.most_steps = most_steps
        self.local_unit = local_unit
        self.lr_decay = lr_decay
        self.drop_last = drop_last
        self.keep_optimizer = keep_optimizer
        self.keep_local = keep_local
        self.average_kept = average_kept
        self._task = find_task(task)
        self._init_from = WeightsFile(init_from) if isinstance(init_from, str) else init_from
        Client.local_optimizer(self)  # refuses what does not go together
        require(
            keep_local == "none" or len(self.local_tensors) > 0,
            f"model.keep_local is '{keep_local}', but the net has no such tensors. Give none, norm, all, or the "
            f"name of a module or tensor such as {list(net.state_dict())[-1]}.",
        )

    # ---- what an algorithm may override ---------------------------------------------------------------------------

    def row_losses(self, output: Tensor, y: Tensor) -> Tensor:
        """(rows,) one loss per row of the net's output; the task's unless overridden."""
        return self._task.row_losses(output, y)

    def sample_losses(self, batch: Batch) -> Tensor:
        """(rows,) one loss per row of a batch."""
        return self.row_losses(self.net(batch.x), batch.y)

    def training_step(self, batch: Any, batch_idx: int | Tensor) -> Tensor | dict[str, Any]:
        """ONE scalar whose gradient is the direction of the local step, or a dict.

        The dict has `loss`, optionally `task` (what is logged as train/loss) and any state that the step carries: a
        number, or a parameter dict for a whole model. `batch` is a Batch, or a tuple of `batches_per_step` of them.
        """
        return self.task_loss(batch)

    def state_spec(self) -> StateSpec:
        """Rows kept per client with their initial value: a number, or RECEIVED, INITIAL, ZEROS for a whole model."""
        return {}

    def sent_spec(self) -> StateSpec:
        """What the server sends beside z, as in `state_spec`; a callback changes it in `cohort.sent`."""
        return {}

    def carried_states(self) -> tuple[str, ...]:
        """States that a step returns, changed, for the next step to read."""
        return ()

    def phases(self) -> list[Phase]:
        """Local solves of a round, in order."""
        return [Phase()]

    def local_work(self, cohort: Cohort, planned: np.ndarray, generator_of: GeneratorOf) -> np.ndarray:
        """(clients,) local steps, given those that the options plan; 0 = does not train this round.

        With `most_steps`, K_i ~ U{1 .. most_steps}. What the k-th client draws comes from `generator_of(k)`, which is
        keyed by (seed, round, client).
        """
        if self.most_steps is None:
            return planned
        drawn = np.array([generator_of(k).integers(1, self.most_steps + 1) for k in range(len(planned))])
        if self.local_unit == "epoch":
            drawn = drawn * planned // self.local_epochs
        return np.where(planned > 0, drawn, 0)

    def select(self, selection: Selection, population: int, generator: np.random.Generator) -> Selection:
        """Who trains and who reports, given the sampler's answer; more may train than report."""
        return selection

    def local_optimizer(self) -> LocalOptimizer:
        """The optimiser of the local steps."""
        return make_optimizer(self.optimizer, {name: getattr(self, name) for name in OPTION_DEFAULTS})

    def check_clients(self, population: int, served: int, reporting: int) -> None:
        """Refuse options that do not fit so many clients, of whom so many report in a round; before any training."""

    def server_callbacks(self) -> list[Any]:
        """Server callbacks that this algorithm needs; the user's own of the same role replace them."""
        return []

    def weighting(self) -> Any:
        """The weighting that holds unless the trainer is given one: a name or a Weighting."""
        return self.weights

    def personal_model(self) -> Personal:
        """Which model is measured as personal/*: x_i, or z with what stays with the user."""
        return Personal("global") if self.local_tensors else Personal()

    def not_compilable(self) -> str | None:
        """Why a step of this algorithm cannot be compiled, or None."""
        return None

    def traffic(self) -> tuple[int, int]:
        """Numbers sent to and from a client in a round: (down, up); by default the model each way."""
        return self.model_numbers, self.model_numbers + 1  # up: the model and n_i

    def on_phase_end(self, cohort: TrainedCohort, phase: Phase) -> None:
        """A phase of the round is over for the whole cohort, and the next one, if there is one, has not begun.

        It may change `cohort.state` and, where a phase has trained the model that is sent, `cohort.params`. The clients
        of several servers may be in one cohort, and the server has heard of none of them: treat each client by itself.
        """

    # ---- what an algorithm may call --------------------------------------------------------------------------------

    def task_loss(self, batch: Batch) -> Tensor:
        """f_i on a batch: the mean of the sample losses over its real rows, and the l2 term where there is one."""
        loss = (self.sample_losses(batch) * batch.row_weights).sum()
        return loss + self.l2_term(self.local_params) if self.l2 else loss

    def l2_term(self, params: Params) -> Tensor:
        """l2/2 |x|² over these parameters."""
        return self.l2 / 2 * sq_norm(params)

    @property
    def task(self) -> Task:
        """What the net is to learn: the loss of a row, and what is measured."""
        return self._task

    @property
    def init_from(self) -> WeightsFile | None:
        """The file with the initial weights, where there is one."""
        return self._init_from

    @property
    def local_params(self) -> Params:
        """x_i: the parameters that are being trained."""
        return dict(self.net.named_parameters())

    @property
    def global_params(self) -> Params:
        """z: the model this client received, detached from the one that is being trained."""
        received = self.received
        assert isinstance(received, TensorGroup)
        return received.read()

    def distance_to_global(self) -> Tensor:
        """|x_i - z|^2, without a factor 1/2; what stays with the client is not part of it."""
        moved = subtract(self.local_params, self.global_params)
        shared = self.shared(moved)
        return sq_norm(shared) if shared else next(iter(moved.values())).new_zeros(())

    def shared(self, params: Params) -> Params:
        """Without the tensors that stay with the client: terms that tie it to the server leave those alone."""
        return {name: value for name, value in params.items() if name not in self.local_tensors}

    @cached_property
    def local_tensors(self) -> frozenset[str]:
        """Names of the parameters and buffers that stay with each client (`keep_local`)."""
        names = self.net.state_dict().keys()
        if self.keep_local == "norm":
            norms = [name for name, module in self.net.named_modules() if isinstance(module, _BatchNorm)]
            return frozenset(name for name in names if name.rpartition(".")[0] in norms)
        prefixes = {"none": (), "all": ("",)}.get(self.keep_local, (f"{self.keep_local}.", self.keep_local))
        return frozenset(name for name in names if name.startswith(prefixes[:1]) or name in prefixes)

    @property
    def own_tensors(self) -> frozenset[str]:
        """The older name of `local_tensors`."""
        return self.local_tensors

    @property
    def model_numbers(self) -> int:
        """Numbers of a model on its way: parameters and buffers without those that stay with the client."""
        held = self.net.state_dict()
        return sum(value.numel() for name, value in held.items() if name not in self.local_tensors)

    def sent(self, name: str) -> Params:
        """What the server sent under this name (`sent_spec`)."""
        return self.kept(name)

    def kept(self, name: str) -> Params:
        """A whole-model state (`state_spec`) as a parameter dict."""
        group = getattr(self, name)
        if not isinstance(group, TensorGroup):
            raise ConfigError(f"'{name}' of {type(self).__name__} is one number, not a whole model. Write self.{name}.")
        return group.read()

    def along(self, direction: Params) -> Tensor:
        """<stopgrad(direction), x_i>: a loss whose gradient is the direction; 0 along none."""
        fixed = {name: value.detach() for name, value in direction.items()}
        return dot(fixed, self.local_params) if fixed else next(iter(self.local_params.values())).new_zeros(())

    def task_grad(self, params: Params, batch: Batch) -> Params:
        """Gradient of the task loss at these parameters; it can be differentiated again."""
        return self.task_grad_and_loss(params, batch)[0]

    def task_grad_and_loss(self, params: Params, batch: Batch) -> tuple[Params, Tensor]:
        """The gradient and the task loss itself."""

        def loss(at: Params) -> Tensor:
            value: Tensor = functional_call(_Task(self), with_prefix("client.net", at), (batch,))
            return value

        slope, value = grad_and_value(loss)(params)
        return slope, value

    # ---- what engines and loop call ------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Register the received model and the state rows as buffers of this client (once)."""
        if self.is_prepared:
            return
        self.check_states()
        params = {name: value.detach() for name, value in self.net.named_parameters()}
        self.received = TensorGroup(params)
        like = next(iter(params.values()))
        for name, initial in (self.state_spec() | self.sent_spec()).items():
            if isinstance(initial, ModelRow):
                self.add_module(name, TensorGroup(params))
            else:
                self.register_buffer(name, like.new_tensor(initial), persistent=False)

    @property
    def is_prepared(self) -> bool:
        """Whether the states are attributes of this client."""
        return "received" in self._modules

    def check_states(self) -> None:
        """Refuse states that could not be told apart from something else, before they become attributes."""
        if self.is_prepared:
            return
        attributes = {*dir(type(self)), *vars(self), *self._parameters, *self._buffers, *self._modules}
        check_state_names(type(self).__name__, self.state_spec(), self.sent_spec(), self.carried_states(), attributes)

    def initial_rows(self, spec: StateSpec, received: Params, initial: Params) -> dict[str, Tensor]:
        """Stacked first values of a spec, for clients that received these models; `initial` is z^0."""
        if not spec:
            return {}
        like = next(iter(received.values()))
        count = like.shape[0]
        rows: dict[str, Tensor] = {}
        for name, value in spec.items():
            if not isinstance(value, ModelRow):
                rows[name] = like.new_full((count,), value)
            elif value is RECEIVED:
                rows |= with_prefix(name, received)
            else:
                model = initial if value is INITIAL else {key: torch.zeros_like(own) for key, own in initial.items()}
                rows |= with_prefix(name, expand(model, count))
        return rows

    def context(self, cohort: Cohort) -> dict[str, Tensor]:
        """Stacked: what a step reads beside the parameters, under the names of this client's buffers."""
        rows = with_prefix("received", cohort.received) | cohort.sent | cohort.state
        return {buffer_name(name): value for name, value in rows.items()}

    def carried_rows(self, cohort: Cohort) -> dict[str, Tensor]:
        """Stacked: the rows that a step may change, under the names of this client's buffers."""
        names = self.carried_states()
        return {buffer_name(name): rows for name, rows in cohort.state.items() if name.partition(".")[0] in names}

    def run_step(self, method: str, batch: Batches, batch_idx: int | Tensor) -> StepOutput:
        """Call the step and bring its answer into one form; what the step was given must be as it was."""
        given, step = self._given(), f"{type(self).__name__}.{method}"
        self._stepping = True
        try:
            output = getattr(self, method)(batch, batch_idx)
        except Exception as error:
            mistake = explain_step_error(error, step, self.batches_per_step, self.net)
            if mistake is None:
                raise
            raise mistake from error
        finally:
            self._stepping = False
        for name, (tensor, version) in self._given().items():
            if given[name][0] is not tensor or given[name][1] != version:
                raise ConfigError(changed_in_place(step, f"'{name}'"))
        check_step_output(output, step, self.carried_states())
        return parse_step_output(output)

    def _given(self) -> dict[str, tuple[Tensor, int]]:
        """What a step may only read, each with torch's count of the changes in place: that costs no comparison."""
        held = {name: value for name, value in self._buffers.items() if value is not None}
        for group, module in self._modules.items():
            if isinstance(module, TensorGroup):
                held |= with_prefix("global_params" if group == "received" else group, module.read())
        return {name: (value, value._version) for name, value in held.items()}

    def score(self, params: Mapping[str, Tensor], x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """(rows,) losses and (rows, k) what the task's measures add up, of the net with these tensors, untrained."""
        return self.scored(self.output(params, x), y)

    def output(self, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """What the net gives with these tensors."""
        output: Tensor = functional_call(self.net, dict(params), (x,))
        return output

    def scored(self, output: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Losses and what measures add up, of rows that may belong to several models."""
        return {LOSSES: self.row_losses(output, y), **self._task.row_sums(output, y)}

    def planned_steps(self, sizes: np.ndarray) -> np.ndarray:
        """(clients,) local steps that the options plan for clients of these sizes."""
        batches = self.batches_per_epoch(sizes)
        if self.local_steps is not None:
            return np.where(batches > 0, self.local_steps, 0)
        return batches * self.local_epochs

    def batches_per_epoch(self, sizes: np.ndarray) -> np.ndarray:
        """(clients,) mini-batches in a pass over the data; BatchNorm cannot use one of a single row."""
        full, ragged = np.divmod(sizes, self.batch_size)
        ragged_counts = (ragged >= self.fewest_rows) & ~(self.drop_last & (full > 0))
        return np.asarray(full + ragged_counts)

    @cached_property
    def fewest_rows(self) -> int:
        """Rows that a batch needs: BatchNorm has no statistics of one."""
        return 2 if any(isinstance(module, _BatchNorm) for module in self.net.modules()) else 1

    def rate(self, round: int) -> float:
        """The local learning rate of a round."""
        return float(self.lr * self.lr_decay**round)

    # ---- Lightning -------------------------------------------------------------------------------------------------

    def forward(self, x: Tensor) -> Tensor:
        """The net's output, so that a Client can be used as a model."""
        output: Tensor = self.net(x)
        return output

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Lightning's: the client with a checkpoint's z. A checkpoint holds no options: give the net and the others."""
        if "net" not in kwargs:
            raise ConfigError(
                f"{cls.__name__}.load_from_checkpoint needs the net, whose class a checkpoint does not hold: give "
                f"net=… as in the run's config.yaml. `fedlit evaluate RUN` and `fedlit export RUN` need nothing."
            )
        return super().load_from_checkpoint(checkpoint_path, *args, **{"weights_only": True, **kwargs})

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The server's optimiser, over z: Lightning saves and restores it. Not to be overridden."""
        if self._create_servers is None:
            raise ConfigError(f"{type(self).__name__} has no server yet. Train it with FederatedTrainer.fit.")
        return self._create_servers()

    @contextmanager
    def served_by(self, create_servers: Callable[[], list[torch.optim.Optimizer]]) -> Iterator[None]:
        """Within the block, `configure_optimizers` gives what this function does: it creates the servers of a run."""
        self._create_servers = create_servers
        try:
            yield
        finally:
            self._create_servers = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy of a client belongs to no run; Lightning forgets the trainer likewise."""
        return super().__getstate__() | {"_create_servers": None}

    @property
    def trainer(self) -> Trainer:
        """Lightning's trainer, refused inside a local step."""
        if self._stepping:
            raise ConfigError(
                "self.trainer (or current_epoch or global_step, which ask it) was read inside a local step. A step may "
                "read its batch, the net, global_params, the states of state_spec() and what the server sent: it is "
                "traced once and run for many clients at a time. Let a server callback write what differs by round "
                "into cohort.sent, and declare it in sent_spec()."
            )
        return super().trainer

    @trainer.setter
    def trainer(self, trainer: Trainer | None) -> None:
        if trainer is not None and trainer.state.fn == TrainerFn.FITTING and not hasattr(trainer, "loop"):
            name = type(self).__name__
            raise ConfigError(
                f"{name} was given to Lightning's own Trainer, which does not know clients and servers. Use fedlit's: "
                f"fedlit.FederatedTrainer(rounds=100).fit({name}(net), datamodule=data)."
            )
        LightningModule.trainer.fset(self, trainer)  # type: ignore[attr-defined]  # a property, to mypy a plain value

    def log(self, *args: Any, **kwargs: Any) -> None:
        """Lightning's log, refused inside a local step."""
        if self._stepping:
            raise ConfigError(
                "self.log was called inside a local step. A step is traced once and run for many clients at a time, so "
                "it cannot log. Return the number as 'task' in the step's dict, or add it in a server callback's "
                "on_round_metrics."
            )
        super().log(*args, **kwargs)
