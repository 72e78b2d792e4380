"""Errors about a user's step: they name the class, the method and the line, and say what to write instead."""

import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from fedlit.client.step import Batch
from fedlit.errors import ConfigError

_READS_VALUES = ("data-dependent control flow", ".item()", "dynamic shape", "data pointer of Tensor")
"""Parts of torch's messages when a mapped or traced step has a branch, .item(), a mask as an index, or .tolist()."""
_OTHERS = (f"{Path(__file__).parents[1]}/", f"{Path(torch.__file__).parent}/", "/site-packages/")
"""Parts of the paths of code that the user did not write."""


class ValueReadError(ConfigError):
    """A step reads the value of a tensor, which differs between the clients of one vectorized step."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"{where} asks for the value of a tensor: by a Python branch on it (if, while, and, or), by .item(), "
            "float(), int(), bool(), .tolist() or .numpy(), or by a mask as an index. The vectorized engine runs one "
            "step for many clients at once, whose values differ. Write torch.where(condition, a, b) instead, or set "
            "trainer.engine to sequential."
        )
        self.where = where


def explain_step_error(error: Exception, step: str, batches_per_step: int, net: nn.Module) -> ConfigError | None:
    """The user's mistake behind an error raised in a step such as `FedX.training_step`; None for any other error."""
    text, where = str(error), f"{step}{_line(error.__traceback__)}"
    if "would mutate a captured Tensor" in text:  # torch.func, which the vectorized engine maps with
        keeper = _keeps_statistics(error.__traceback__, net)
        what = changed_in_place(where, "a tensor that it was given") if keeper is None else mixed(step, keeper, net)
        return ConfigError(what)
    if isinstance(error, RuntimeError) and any(words in text for words in _READS_VALUES):
        return ValueReadError(where)
    if isinstance(error, ValueError) and "values to unpack" in text and _holds_batch(error.__traceback__):
        return ConfigError(
            f"{where} takes a batch apart into the wrong number of parts ({text}). A batch has three: write "
            "`x, y, row_weights = batch`, or batch.x and batch.y, and reduce with the weights, which are 0 for "
            "padding: (losses * row_weights).sum(). self.task_loss(batch) does all of it."
        )
    if isinstance(error, TypeError | AttributeError) and "'TensorGroup'" in text:
        return ConfigError(
            f"{where} reads a whole model as if it were a tensor or a dict ({text}). Write self.kept('name') for one "
            "of state_spec(), and self.sent('name') for one of sent_spec(): a dict from parameters' names to tensors."
        )
    if isinstance(error, AttributeError) and batches_per_step > 1 and "'tuple' object has no attribute" in text:
        return ConfigError(
            f"{where} reads its batch as one, but batches_per_step is {batches_per_step}: a step is given a tuple of "
            f"that many. Write `first, *others = batch`, and first.x, first.y."
        )
    return None


def changed_in_place(where: str, what: str) -> str:
    """The message for a step that changes a tensor that it may only read."""
    return (
        f"{where} changes {what}, but a step may only read the received model (global_params), states and what the "
        "server sent. Make a new tensor instead (y = x + 1, not x += 1 or self.x = ...). A state that moves from step "
        "to step is returned in the step's dict, under its name in carried_states()."
    )


def mixed(step: str, keeper: str, net: nn.Module) -> str:
    """The message for a step that runs its net with parameters of several models, though the net keeps statistics."""
    kind = type(net.get_submodule(keeper)).__name__
    return (
        f"{step} passes the net at other parameters than its own (task_grad), and '{keeper}' of model.net "
        f"({type(net).__name__}), a {kind}, changes its buffers in every pass: it would mix the statistics of several "
        "models. Take a net that keeps none, with GroupNorm or LayerNorm in place of BatchNorm (ResNet20 has "
        "norm: group), or an algorithm whose step passes the net once: FedAvg, FedBC, Ditto with order: personal_first."
    )


def check_step_output(output: object, step: str, carried: tuple[str, ...]) -> None:
    """Require that a step returned a scalar tensor, or a dict with one as `loss` and the states that it carries."""
    answer = output if isinstance(output, Mapping) else {"loss": output}
    if "loss" not in answer:
        raise ConfigError(
            f"{step} returned a dict without 'loss' (it has {', '.join(map(str, answer)) or 'nothing'}). Return a "
            "scalar tensor, or a dict such as {'loss': loss, 'task': task}."
        )
    for name in ("loss", "task"):
        if name in answer:
            _check_scalar(answer[name], step, name)
    unknown = sorted(set(answer) - {"loss", "task", *carried})
    if unknown:
        raise ConfigError(
            f"{step} returned '{unknown[0]}', which is neither loss nor task nor named by carried_states(). A state "
            "that moves with every step is declared in state_spec() and named in carried_states(); return nothing else."
        )


def check_state(value: Tensor, expected: Tensor, step: str, name: str) -> None:
    """Require that a state that a step carries keeps its shape."""
    if value.shape != expected.shape:
        raise ConfigError(
            f"{step} returned '{name}' of shape {tuple(value.shape)}, but this state has {tuple(expected.shape)}"
            f"{', one number for each client' if expected.dim() == 0 else ''}. Return it in that shape."
        )


def _check_scalar(value: Any, step: str, name: str) -> None:
    if not isinstance(value, Tensor):
        what = "nothing" if value is None else f"a {type(value).__name__}"
        raise ConfigError(
            f"{step} returned {what} as its {name}, but it must be a scalar tensor. End with `return loss`, without "
            ".item(), float() or .detach().numpy() on it."
        )
    if value.dim():
        raise ConfigError(
            f"{step} returned a {name} of shape {tuple(value.shape)}, but it must be one number. Reduce one loss per "
            "row with the batch's weights, (losses * batch.row_weights).sum(), which leaves padding out; "
            "self.task_loss(batch) does it."
        )


def _line(trace: TracebackType | None) -> str:
    """` (mine.py, line 12)`: the innermost line that the user wrote."""
    frames = [frame for frame in traceback.extract_tb(trace) if not any(part in frame.filename for part in _OTHERS)]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _keeps_statistics(trace: TracebackType | None, net: nn.Module) -> str | None:
    """Name of the innermost module of the net that was running at the failure, if it has buffers of its own."""
    names = {id(module): name for name, module in net.named_modules()}
    passed = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(trace)]
    inner = next((module for module in reversed(passed) if id(module) in names), None)
    return names[id(inner)] if isinstance(inner, nn.Module) and has_buffers(inner) else None


def _holds_batch(trace: TracebackType | None) -> bool:
    """Whether a local variable of the function that failed is a batch."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and any(isinstance(value, Batch) for value in trace.tb_frame.f_locals.values())


def has_buffers(module: nn.Module) -> bool:
    """Whether a module itself has buffers, not counting its submodules."""
    return next(module.buffers(recurse=False), None) is not None
