"""UserModule: a LightningModule that exists, as a client: its `training_step` is f_i, its `forward` the net.

The module is not changed. While its step runs, its `log` collects numbers, and it has a trainer that refuses every
question: a step is run for many clients, in an order that the engine chooses.
"""

import inspect
import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torchmetrics import Metric

from fedlit.client.net_parts import trained_params
from fedlit.client.step import Batch
from fedlit.errors import ConfigError, require
from fedlit.inputs import Inputs
from fedlit.metrics.catalogue import declare_measure
from fedlit.metrics.from_torchmetrics import valued
from fedlit.metrics.measures import Measure, Valued, as_given, no_sums

log = logging.getLogger("fedlit")

_CHANGES_STEPS = (
    *("backward", "optimizer_step", "optimizer_zero_grad", "lr_scheduler_step", "configure_gradient_clipping"),
    *("on_before_backward", "on_after_backward", "on_before_optimizer_step", "on_before_zero_grad"),
)
"""Hooks that may change a local step. fedlit's engines make the steps, and do not call them."""
_NOT_CALLED = (
    *("on_fit_start", "on_train_start", "on_train_end", "on_train_epoch_start", "on_train_epoch_end"),
    *("on_train_batch_start", "on_train_batch_end", "on_before_batch_transfer", "on_after_batch_transfer"),
    *("on_validation_epoch_end", "on_test_epoch_end", "train_dataloader", "configure_callbacks"),
)
"""Members that a line names if the module has them."""
_OPTIONS: dict[type[Optimizer], tuple[str, tuple[str, ...]]] = {
    SGD: ("sgd", ("lr", "momentum", "weight_decay")),
    Adam: ("adam", ("lr", "betas", "eps", "weight_decay")),
    AdamW: ("adamw", ("lr", "betas", "eps", "weight_decay")),
}
"""Optimiser of torch -> fedlit's name of it, and its options, which have the same names in fedlit."""
_VARIANTS = ("dampening", "nesterov", "amsgrad", "maximize")
"""Options of torch that make another optimiser of it."""


class UserModule:
    """Calls the steps of a LightningModule.

    Args:
        module: it stays as it is.
    """

    def __init__(self, module: LightningModule) -> None:
        self.module = module
        self.name = type(module).__name__
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self.logged: dict[str, None] = {}
        """Names that `self.log` was given in a step, once the step was tried."""
        require(
            isinstance(module, LightningModule),
            f"model.module is a {self.name}, but it has to be a LightningModule. Give any other module as net.",
        )
        require(
            self._has("training_step") and self._has("forward"),
            f"model.module ({self.name}) needs training_step, the loss of a client, and forward, the net that is "
            "measured (def forward(self, x): return self.model(x)).",
        )
        require(
            module.automatic_optimization,
            f"model.module ({self.name}) optimises by hand (automatic_optimization is False), but fedlit takes "
            "the local steps. Let training_step return the loss, and leave manual_backward and optimizer.step out.",
        )
        changing = [name for name in _CHANGES_STEPS if self._has(name)]
        require(
            not changing,
            f"model.module ({self.name}) overrides {', '.join(changing)}, which fedlit's local steps do not call. "
            "Leave it out; model.clip clips gradients.",
        )
        ignored = [name for name in _NOT_CALLED if self._has(name)]
        if ignored:
            log.info(f"{self.name}: not called in a federation: {', '.join(ignored)}")

    def _has(self, name: str) -> bool:
        """Whether the module's class has a member of its own."""
        return getattr(type(self.module), name, None) is not getattr(LightningModule, name, None)

    # ---- the local objective ----------------------------------------------------------------------------------------

    def loss(self, batch: Batch) -> Tensor:
        """f_i on the rows of a batch, which must all be real: `training_step` takes a mean by itself."""
        step = self.module.training_step
        takes = [name for name in ("batch_idx",) if name in inspect.signature(step).parameters]
        with self.stepping():
            output = step((batch.x, batch.y), **dict.fromkeys(takes, 0))
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if not isinstance(loss, Tensor) or loss.dim() > 0:
            what = f"a loss of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(output).__name__}"
            raise ConfigError(
                f"{self.name}.training_step returned {what}, but it must be one number, or a dict with one as 'loss'. "
                "End with `return loss`; a batch is (x, y), without row_weights."
            )
        return loss

    @contextmanager
    def stepping(self, note: Callable[..., None] | None = None) -> Iterator[None]:
        """Inside the block, the module has a trainer that refuses, and `note` is its log; this object's own if None."""
        module = self.module
        trainer, metrics = module._trainer, [one for one in module.modules() if isinstance(one, Metric)]
        module._trainer = _NoTrainer(self.name)  # type: ignore[assignment]  # it stands for one
        module.log = note or self._log  # type: ignore[method-assign]  # hides the class's method
        try:
            yield
        finally:
            del module.log
            module._trainer = trainer
            for metric in metrics:
                if metric.update_called:  # it would gather the batches of all clients
                    metric.reset()

    # ---- what it logs ------------------------------------------------------------------------------------------------

    def _log(self, name: str, value: Any, *_: Any, **__: Any) -> None:
        """Take the place of `self.log`: add a number, or what a metric says of this batch."""
        self.logged[name] = None
        number = value.compute() if isinstance(value, Metric) else value
        try:
            added = float(number.detach() if isinstance(number, Tensor) else number)
        except RuntimeError:  # of a tensor that stands for several clients, or for no number at all
            return
        self._sums[name] = self._sums.get(name, 0.0) + added
        self._counts[name] = self._counts.get(name, 0) + 1

    def forget_logged(self) -> None:
        """Begin a new mean of what is logged."""
        self._sums, self._counts = {}, {}

    @property
    def sums(self) -> dict[str, tuple[float, int]]:
        """Name -> sum and number of the values that were logged."""
        return {name: (total, self._counts[name]) for name, total in self._sums.items()}

    # ---- what it measures --------------------------------------------------------------------------------------------

    def step_measures(self, x: Inputs, output: Tensor, y: Tensor, taken: Collection[str]) -> list[Measure]:
        """What `validation_step` and `test_step` log, as measures; tried on some rows and the net's output for them.

        Such a step is run again with outputs that fedlit has computed, as answers to self(x). A line names a step that
        gets its predictions in another way.
        """
        found: dict[str, Measure] = {}
        for step in (name for name in ("validation_step", "test_step") if self._has(name)):
            training = self.module.training
            self.module.eval()  # as for the output
            expected = self.measured(step, x, y)
            self.module.train(training)
            try:
                again = self.measured(step, output, y, output)
            except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
                again = {}
            if again.keys() != expected.keys() or not all(_alike(again[name][0], expected[name][0]) for name in again):
                log.info(f"{self.name}.{step} does not get its predictions from self(x): what it logs is not measured")
                continue
            for name, (_, metric) in again.items():
                measure = self._measure(step, name, metric, {*taken, *found})
                declare_measure(measure)
                found[measure.name] = measure
        return list(found.values())

    def measured(
        self, step: str, x: Inputs, y: Tensor, output: Tensor | None = None
    ) -> dict[str, tuple[float, Metric | None]]:
        """Name -> what a step logs for these rows, and the metric that it comes from; `output` answers self(x)."""
        module, told = self.module, {}

        def note(name: str, value: Any, *_: Any, **__: Any) -> None:
            metric = value if isinstance(value, Metric) else None
            told[name] = (float(value if metric is None else metric.compute()), metric)

        call = getattr(module, step)
        takes = [name for name in ("batch_idx",) if name in inspect.signature(call).parameters]
        with self.stepping(note), torch.no_grad():
            if output is not None:
                module.forward = lambda *_, **__: output  # type: ignore[method-assign]  # hides the class's method
            try:
                call((x, y), **dict.fromkeys(takes, 0))
            finally:
                vars(module).pop("forward", None)
        return told

    def _measure(self, step: str, name: str, metric: Metric | None, taken: Collection[str]) -> Measure:
        """The measure of a name that a step logs; a number is better small where its name says loss or error."""
        short = "".join(letter for letter in name if letter.isalnum())
        prefix = step.removesuffix("_step").replace("validation", "val")
        short = f"{prefix}{short}" if short in taken or short == "loss" else short
        less = metric.higher_is_better is False if metric is not None else "loss" in name or "err" in name
        is_share = metric is not None and (metric.plot_lower_bound, metric.plot_upper_bound) == (0.0, 1.0)

        def of_outputs(output: Tensor, y: Tensor) -> Valued:
            return valued(lambda: self.measured(step, output, y, output)[name][0], y)

        return Measure(
            short,
            name,
            no_sums,
            as_given,
            unit="share" if is_share else "",
            best="min" if less else "max",
            of_outputs=of_outputs,
        )

    # ---- the local optimiser -----------------------------------------------------------------------------------------

    def local_options(self) -> dict[str, Any]:
        """The local options that `configure_optimizers` means; none if the module has no such method."""
        if not self._has("configure_optimizers"):
            return {}
        with self.stepping():
            answer: Any = self.module.configure_optimizers()
        optimizer = self._only(answer)
        kind, names = _OPTIONS.get(type(optimizer), ("", ()))
        if not kind:
            raise self._refusal(f"makes {type(optimizer).__name__}, but local steps are SGD's, Adam's or AdamW's")
        group, *others = optimizer.param_groups
        if others:
            raise self._refusal(f"has {1 + len(others)} groups of parameters with options of their own")
        variant = next((name for name in _VARIANTS if group.get(name)), None)
        if variant is not None:
            raise self._refusal(f"sets {variant} of {type(optimizer).__name__}, which local steps do not have")
        if {id(value) for value in group["params"]} != {id(value) for value in trained_params(self.module).values()}:
            raise self._refusal("has other parameters than those that are trained (freeze them, or use model.train)")
        return {"optimizer": kind, **{name: group[name] for name in names}}

    def _only(self, answer: Any) -> Optimizer:
        """The optimiser of an answer of configure_optimizers; ConfigError for several, or for a schedule."""
        schedules: Any = ()
        if isinstance(answer, Mapping):
            answer, schedules = answer.get("optimizer"), answer.get("lr_scheduler", ())
        elif isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], list):
            answer, schedules = answer
        if schedules:
            raise self._refusal("has a schedule of the rate, but clients start anew in each round (model.lr_decay)")
        found = list(answer) if isinstance(answer, list | tuple) else [answer]
        if len(found) != 1:
            raise self._refusal(f"makes {len(found)} optimisers, but a client has one")
        if not isinstance(found[0], Optimizer):
            raise self._refusal(f"returned a {type(found[0]).__name__}, not an optimiser")
        return found[0]

    def _refusal(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self.name}.configure_optimizers {what}. Change it; or give lr (and optimizer) of the algorithm, "
            "other than the default, and it is not read."
        )


def _alike(value: float, other: float) -> bool:
    return math.isclose(value, other, rel_tol=1e-4, abs_tol=1e-6) or (math.isnan(value) and math.isnan(other))


class _NoTrainer:
    """Stands for the trainer while a step runs."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        raise ConfigError(
            f"{self._module} reads the trainer in a step (self.trainer.{name}, or what asks it: current_epoch, "
            "global_step, logger, optimizers(), lr_schedulers()). In a federation a step is run for many clients, in "
            "an order that the engine chooses. Compute the loss from the batch and the net alone; self.log may stay."
        )


def net_of(algorithm: str, net: nn.Module | None, module: LightningModule | None) -> nn.Module:
    """The net of a client that was given a net, or a LightningModule."""
    require(
        (net is None) != (module is None),
        f"{algorithm} was given {'neither model.net nor' if net is None else 'both model.net and'} model.module. Give "
        "net, the network, or module, a LightningModule whose training_step is the loss.",
    )
    found = module if net is None else net
    assert found is not None
    return found
