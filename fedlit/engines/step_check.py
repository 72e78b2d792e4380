"""Tries every phase's step and optimiser once on real rows, so that mistakes end a run before it begins."""

import torch
from torch import Tensor
from torch.func import functional_call

from fedlit.client.base import Client
from fedlit.client.local_optimizers import LocalOptimizer
from fedlit.client.step import Batch, Batches, StepOutput, state_name
from fedlit.client.step_errors import check_state
from fedlit.engines.program import StepModule
from fedlit.engines.sequential import gradients
from fedlit.engines.step_probe import read_by_a_step, training
from fedlit.errors import located, require
from fedlit.inputs import Inputs
from fedlit.metrics.formatting import counted
from fedlit.params import Params, clone


def check_steps(client: Client, x: Inputs, y: Tensor) -> None:
    """Try the step and the optimiser of every phase once on these rows; a mistake raises an error."""
    client.prepare()
    batch = Batch(x, y, torch.full((len(y),), 1.0 / len(y), dtype=next(client.net.parameters()).dtype))
    count = client.batches_per_step
    tensors = {f"client.{name}": value for name, value in clone(read_by_a_step(client)).items()}
    with training(client), torch.random.fork_rng(devices=[]):
        for phase in client.phases():
            step = f"{type(client).__name__}.{phase.step_method}"
            with located(f"while {step} was tried on {counted(len(y), 'row')} before the first round"):
                grads = _gradients(client, phase.step_method, tensors, batch if count == 1 else (batch,) * count)
            check_optimizer(phase.optimizer or client.local_optimizer(), dict(client.local_params), grads)


def _gradients(client: Client, method: str, tensors: Params, batch: Batches) -> Params:
    """The gradient of a step's loss at these tensors."""
    at = {name: tensors[f"client.net.{name}"].requires_grad_() for name in client.local_params}
    with torch.enable_grad():
        output: StepOutput = functional_call(StepModule(client, method), dict(tensors), (batch, None))
        require(
            output.loss.requires_grad,
            f"{type(client).__name__}.{method} returned a loss that does not depend on the net's parameters, so it has "
            "no gradient. Compute it from self.net or self.local_params, outside of torch.no_grad() and without "
            ".detach().",
        )
    for name, value in output.carried.items():
        check_state(value, tensors[f"client.{name}"], f"{type(client).__name__}.{method}", state_name(name))
    return gradients(output, at)


def check_optimizer(optimizer: LocalOptimizer, params: Params, grads: Params) -> None:
    """Refuse a local optimiser that changes the names or shapes of parameters or of its state."""
    name, params = type(optimizer).__name__, clone(params)
    lacking = next((method for method in ("init", "point", "step") if not hasattr(optimizer, method)), None)
    require(
        lacking is None,
        f"The local optimiser {name} has no method '{lacking}'. It needs init(params), point(params, state) and "
        "step(params, grads, state, lr), as fedlit.LocalOptimizer has them.",
    )
    require(
        type(optimizer).__hash__ is not None,
        f"The local optimiser {name} cannot be hashed, which engines need. Declare it with @dataclass(frozen=True).",
    )
    with located(f"while the local optimiser {name} was tried before the first round"), torch.no_grad():
        state = optimizer.init(params)
        _check_like(optimizer.point(params, state), params, f"{name}.point", "the parameters")
        answer = optimizer.step(params, grads, state, 0.01)
        require(
            isinstance(answer, tuple) and len(answer) == 2,
            f"{name}.step must return two dicts, `return parameters, state`; it returned a {type(answer).__name__}.",
        )
        _check_like(answer[0], params, f"{name}.step", "the parameters")
        _check_like(answer[1], state, f"{name}.step", "the state that init gave")


def _check_like(answer: object, like: Params, method: str, what: str) -> None:
    require(
        isinstance(answer, dict) and isinstance(like, dict),
        f"{method} must keep {what} as a dict of tensors, {{name: tensor}}; it gave a {type(answer).__name__}.",
    )
    assert isinstance(answer, dict)
    missing, new = sorted(like.keys() - answer.keys()), sorted(answer.keys() - like.keys())
    require(
        not missing and not new,
        f"{method} must keep the names of {what}, but it {'left out' if missing else 'added'} "
        f"'{next(iter([*missing, *new]), '')}'. Return a value for every name that it is given, and for no other.",
    )
    for name, value in like.items():
        require(
            answer[name].shape == value.shape,
            f"{method} gave '{name}' the shape {tuple(answer[name].shape)}, but in {what} it is {tuple(value.shape)}. "
            "A local optimiser sees the tensors of one client, without a dimension for clients: keep every shape.",
        )
