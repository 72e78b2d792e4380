"""Client(LightningModule): the contract that an algorithm fills in.

A client is a net, per-sample losses, a local objective (`training_step`) and local options. It sees the model it
received, its own state rows and its own data, nothing else. It does not visit clients, choose batches or average:
engines and the loop do that, in the same way for every algorithm.

Everything that a step reads and that differs by client or round (the received model, what the client kept) is a buffer
(`state_buffers.py`). What Lightning calls is in `lightning_client.py`; local options are in `local_options.py`.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, Never

import numpy as np
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from fedlit.client.cohort import Cohort, Selection, TrainedCohort
from fedlit.client.local_optimizers import OPTION_DEFAULTS, LocalKind, LocalOptimizer, make_optimizer
from fedlit.client.local_options import LocalOptions
from fedlit.client.net_parts import freeze_but, trained_params
from fedlit.client.specs import count_numbers, first_values, sent_values
from fedlit.client.state_buffers import StateBuffers
from fedlit.client.step import Batch, Newcomer, Personal, Phase, TensorGroup
from fedlit.client.tasks import LOSSES, OUTPUTS, TARGETS, Task, find_task
from fedlit.client.user_module import UserModule, net_of
from fedlit.client.weights_file import WeightsFile
from fedlit.errors import require
from fedlit.inputs import Inputs, call, call_with
from fedlit.keys import GeneratorOf
from fedlit.metrics.catalogue import ShownState, declare
from fedlit.metrics.from_torchmetrics import Metrics, measures_of
from fedlit.metrics.measures import Measure
from fedlit.params import Params, dot, sq_norm, subtract, with_prefix
from fedlit.recorded import Recorded, refuse_unknown


class Client(Recorded, LocalOptions, StateBuffers):
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
        task: what the net is to learn: classification (unless given), regression, next_token, multilabel, segmentation,
            or a Task of your own.
        metrics: metrics of torchmetrics, measured beside the task's measures: names, class paths with init_args, or
            objects; a mapping gives them names of your own.
        init_from: file with the weights that the net, or a part of it, begins with: a state dict, safetensors, or a
            run's checkpoint.
        train: what is trained: names of modules or parameters, or patterns with *, one or a list. All else is frozen.
            Unless given, all parameters that require a gradient are trained.
        cache: name of a frozen module that sees x first; its outputs are computed once and kept for every sample.
        module: a LightningModule in the place of net: its training_step is f_i, its forward the net, and its
            configure_optimizers the local optimiser, unless lr or another option of it is not at its default.
    """

    weights: str = "samples"
    """Name of the default weighting; `trainer.weights` replaces it."""
    needs: frozenset[str] = frozenset()
    """Which of `risk_received`, `risk_trained` and `grad_received` the loop measures for it in each round."""
    server_lr: float = 1.0
    """Factor on the averaged update, before the server's optimiser takes its step."""
    pools_data: bool = False
    """Whether one client trains on everybody's data, as the reference without federation."""
    newcomers_get_z: bool = False
    """Whether a client that comes after the training gets z as it is; if not, it does its part of a first round."""
    shown_states: Mapping[str, ShownState] = {}
    """Label and curves of the numbers in `state_spec`; by default the label is the name, and the curve is the mean."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        declare(cls.shown_states)

    def __init__(
        self,
        net: nn.Module | None = None,
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
        metrics: Metrics | None = None,
        init_from: str | WeightsFile | None = None,
        train: str | Sequence[str] | None = None,
        cache: str | None = None,
        module: LightningModule | None = None,
        **unknown: Never,
    ) -> None:
        super().__init__()
        refuse_unknown(self, unknown)
        require(
            len(betas) == 2 and all(0 <= beta < 1 for beta in betas),
            f"model.betas is {list(betas)}; give two numbers from 0 up to, but not including, 1.",
        )
        self.automatic_optimization = False
        self.net = net_of(type(self).__name__, net, module)
        self.user_module = None if module is None else UserModule(module)
        if train is not None:
            freeze_but(self.net, train, "model.train")
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
        self.cache = cache
        self.read_module_options()
        self.check_local_options()
        self._task = find_task(task)
        of_torchmetrics = measures_of(metrics, self._task.predicts, self._task.predicted, self._task.measures)
        self._measures: tuple[Measure, ...] = (*self._task.measures, *of_torchmetrics)
        self._of_steps: tuple[Measure, ...] = ()
        self._init_from = WeightsFile(init_from) if isinstance(init_from, str) else init_from
        Client.local_optimizer(self)  # refuses what does not go together
        self.check_kept_tensors()

    # ---- what an algorithm may override, with the states of `StateBuffers` -----------------------------------------

    def row_losses(self, output: Tensor, y: Tensor) -> Tensor:
        """(rows,) one loss per row of the net's output; by default the task's."""
        return self._task.row_losses(output, y)

    def sample_losses(self, batch: Batch) -> Tensor:
        """(rows,) one loss per row of a batch."""
        return self.row_losses(call(self.net, batch.x), batch.y)

    def training_step(self, batch: Any, batch_idx: int | Tensor) -> Tensor | dict[str, Any]:
        """ONE scalar whose gradient is the direction of the local step, or a dict.

        The dict has `loss`, optionally `task` (what is logged as train/loss) and any state that the step carries: a
        number, or a parameter dict for a whole model. `batch` is a Batch, or a tuple of `batches_per_step` of them.
        """
        return self.task_loss(batch)

    def phases(self) -> list[Phase]:
        """Local solves of a round, in order."""
        return [Phase()]

    def summarize(self, batch: Batch) -> Params:
        """Sums over some of the client's own rows, such as its features by class; nothing by default.

        After every phase it is called for all training rows of each client, in pieces, with row weights 1: with the
        trained net, in evaluation mode, without augmentation. `on_phase_end` reads the totals as `cohort.summary`.
        """
        return {}

    def local_work(self, cohort: Cohort, planned: np.ndarray, generator_of: GeneratorOf) -> np.ndarray:
        """(clients,) local steps of each client, from those that the options plan; 0 means no training this round.

        With `most_steps`, K_i ~ U{1 .. most_steps}. What the k-th client draws comes from `generator_of(k)`, which is
        keyed by (seed, round, client).
        """
        if self.most_steps is None:
            return planned
        counts = np.array([generator_of(k).integers(1, self.most_steps + 1) for k in range(len(planned))])
        if self.local_unit == "epoch":
            counts = counts * planned // self.local_epochs
        return np.where(planned > 0, counts, 0)

    def select(self, selection: Selection, population: int, generator: np.random.Generator) -> Selection:
        """Change who trains and who reports; `selection` is the sampler's answer, and more may train than report."""
        return selection

    def local_optimizer(self) -> LocalOptimizer:
        """The optimiser of the local steps."""
        return make_optimizer(self.optimizer, {name: getattr(self, name) for name in OPTION_DEFAULTS})

    def check_clients(self, population: int, served: int, reporting: int) -> None:
        """Refuse, before any training, options that do not fit these numbers of clients.

        Args:
            population: clients of the federation.
            served: clients of each server, at most.
            reporting: clients that report to a server in a round.
        """

    def server_callbacks(self) -> list[Any]:
        """Server callbacks that this algorithm needs; a user's callback of the same role replaces one."""
        return []

    def weighting(self) -> Any:
        """The default weighting: a name or a Weighting; `trainer.weights` replaces it."""
        return self.weights

    def personal_model(self) -> Personal:
        """Which model is measured as personal/*: x_i, or z with the tensors of `keep_local` where it names some."""
        return Personal("global") if self.local_tensors else Personal()

    def newcomer(self) -> Newcomer:
        """What a client gets that comes after the training: by default, its personal model after a first round.

        A model that training does not change, z or z after an adaptation, needs no round.
        """
        if self.newcomers_get_z and not self.local_tensors:
            return Newcomer()
        personal = self.personal_model()
        changes = personal.model != "global" or bool(self.local_tensors)
        return Newcomer(personal, tuple(self.phases()) if changes else ())

    def not_compilable(self) -> str | None:
        """Why a step of this algorithm cannot be compiled, or None."""
        return None

    def traffic(self) -> tuple[int, int]:
        """How many numbers a client receives and sends in a round: (down, up), as the specs declare it.

        Down go z, `sent_spec`, and the states at the server that it sends; up go x_i, n_i and `report_spec`. What goes
        down at a client's first participation only is not counted, and neither are risks that a weighting reads.
        """
        kept, reported = self.state_spec(), self.report_spec()
        params = trained_params(self.net)
        model, shared = (sum(value.numel() for value in part.values()) for part in (params, self.shared(params)))
        down = count_numbers(sent_values(kept) | first_values(self.sent_spec()), model)
        up = count_numbers({name: first for name, first in first_values(reported).items() if name not in kept}, shared)
        up += count_numbers({name: first for name, first in first_values(kept).items() if name in reported}, model)
        return self.model_numbers + down, self.model_numbers + 1 + up

    def on_phase_end(self, cohort: TrainedCohort, phase: Phase) -> None:
        """Runs after each phase, when the whole cohort has finished it.

        It may change `cohort.state` and, once a phase has trained the model that is sent, `cohort.params`. The cohort
        may hold clients of several servers, which have received nothing from them yet: treat each client by itself.
        """

    # ---- what an algorithm may call --------------------------------------------------------------------------------

    def task_loss(self, batch: Batch) -> Tensor:
        """f_i on a batch: the mean of the sample losses over its real rows, plus the l2 term if there is one."""
        if self.user_module is not None:
            loss = self.user_module.loss(batch)
        else:
            loss = (self.sample_losses(batch) * batch.row_weights).sum()
        return loss + self.l2_term(self.local_params) if self.l2 else loss

    def l2_term(self, params: Params) -> Tensor:
        """l2/2 |x|² over these parameters."""
        return self.l2 / 2 * sq_norm(params)

    @property
    def task(self) -> Task:
        """What the net is to learn: the loss of a row, and the measures of its predictions."""
        return self._task

    @property
    def measures(self) -> tuple[Measure, ...]:
        """What is measured of predictions: the task's measures, and `metrics`."""
        return self._measures

    def measure_steps(self, x: Inputs, output: Tensor, y: Tensor) -> None:
        """Add what the module's validation_step and test_step log to the measures; they are tried on these rows."""
        known = [measure for measure in self._measures if measure not in self._of_steps]
        if self.user_module is not None:
            self._of_steps = tuple(self.user_module.step_measures(x, output, y, [one.name for one in known]))
        self._measures = (*known, *self._of_steps)

    @property
    def init_from(self) -> WeightsFile | None:
        """The file with the initial weights, if there is one."""
        return self._init_from

    @property
    def local_params(self) -> Params:
        """x_i: the parameters that are being trained.

        Once the client is prepared, those of then: in a step that is mapped or compiled no tensor requires a gradient.
        """
        if not self.is_prepared:
            return trained_params(self.net)
        params = dict(self.net.named_parameters())
        return {name: params[name] for name in self.global_params}

    @property
    def global_params(self) -> Params:
        """z: the model this client received, detached from the one that is being trained."""
        received = self.received
        assert isinstance(received, TensorGroup)
        return received.read()

    def distance_to_global(self) -> Tensor:
        """|x_i - z|^2, without a factor 1/2, over the tensors that do not stay with the client."""
        moved = subtract(self.local_params, self.global_params)
        shared = self.shared(moved)
        return sq_norm(shared) if shared else next(iter(moved.values())).new_zeros(())

    def along(self, direction: Params) -> Tensor:
        """<stopgrad(direction), x_i>: a loss whose gradient is the direction; 0 if the direction is empty."""
        fixed = {name: value.detach() for name, value in direction.items()}
        return dot(fixed, self.local_params) if fixed else next(iter(self.local_params.values())).new_zeros(())

    def task_grad(self, params: Params, batch: Batch) -> Params:
        """Gradient of the task loss at these parameters; it can be differentiated again."""
        return self.task_grad_and_loss(params, batch)[0]

    def task_grad_and_loss(self, params: Params, batch: Batch) -> tuple[Params, Tensor]:
        """The gradient and the task loss itself."""

        def loss(at: Params) -> Tensor:
            value: Tensor = functional_call(_TaskLoss(self), with_prefix("client.net", at), (batch,))
            return value

        slope, value = grad_and_value(loss)(params)
        return slope, value

    # ---- what engines and loop call ------------------------------------------------------------------------------

    def score(self, params: Mapping[str, Tensor], x: Inputs, y: Tensor) -> dict[str, Tensor]:
        """(rows,) losses and (rows, k) summands of the measures, for the net with these tensors."""
        return self.scored(self.output(params, x), y)

    def output(self, params: Mapping[str, Tensor], x: Inputs) -> Tensor:
        """The net's output with these tensors."""
        output: Tensor = call_with(self.net, params, x, tie_weights=self.ties_weights)
        return output

    @cached_property
    def ties_weights(self) -> bool:
        """Whether two modules of the net share a tensor. To look for such tensors in every call would take time."""
        tensors = [*self.net.named_parameters(remove_duplicate=False), *self.net.named_buffers(remove_duplicate=False)]
        return len({id(value) for _, value in tensors}) < len(tensors)

    def scored(self, output: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Losses and summands of the measures for each output row; the rows may belong to several models.

        Also outputs and targets, if a measure is not a sum over rows.
        """
        scored = {LOSSES: self.row_losses(output, y), **self._task.row_sums(output, y)}
        needs_outputs = any(measure.of_outputs is not None for measure in self.measures)
        return scored | ({OUTPUTS: output, TARGETS: y} if needs_outputs else {})


class _TaskLoss(nn.Module):
    """A client's task loss as a module's forward, so that functional_call can replace the net's parameters."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self.client = client

    def forward(self, batch: Batch) -> Tensor:
        return self.client.task_loss(batch)
