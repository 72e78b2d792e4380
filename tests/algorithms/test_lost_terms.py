"""Ways to lose an algorithm's own term inside a step: written to detached tensors, sign reversed, gradients left over.

Each step is compared with the same step by hand, with everything that it reads chosen at random.
"""

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fedlit import (
    Batch,
    Client,
    Ditto,
    FedBC,
    FedBCD,
    FedBCDI,
    FedDyn,
    FedFor,
    FedProx,
    PerFedAvg,
    PerFedBC,
    PFedMe,
    Scaffold,
)
from fedlit.client.step import Batches, escape
from fedlit.engines.sequential import copy_into, gradients
from tests.problems import CLASSES, FEATURES, largest_difference, tiny_net

LOCAL: dict[str, Any] = {"lr": 0.05, "batch_size": 4, "local_epochs": 2}
Params = dict[str, Tensor]


def params(seed: int) -> Params:
    return {name: value.detach() for name, value in tiny_net(seed).named_parameters()}


X, Z, A, B = (params(seed) for seed in (3, 11, 12, 13))
"""The model in training, the received one, and two more."""


def batch(seed: int = 0) -> Batch:
    rng = torch.Generator().manual_seed(seed)
    x, y = torch.randn(4, FEATURES, generator=rng).double(), torch.randint(CLASSES, (4,), generator=rng)
    return Batch(x, y, torch.full((4,), 0.25, dtype=torch.float64))


def slope(at: Params, of: Batch) -> Params:
    """The plain gradient of the mean loss, by autograd on tensors of its own."""
    own = {name: value.detach().clone().requires_grad_() for name, value in at.items()}
    loss = cross_entropy(functional_call(tiny_net(), own, (of.x,)), of.y)
    return dict(zip(own, torch.autograd.grad(loss, list(own.values())), strict=True))


def combine(*parts: tuple[float, Params]) -> Params:
    return {name: sum((factor * part[name] for factor, part in parts), torch.zeros(())) for name in X}


def stepped(client: Client, given: Batches, method: str = "training_step", number: int = 0, **held: Any) -> Any:
    """One step of the client at X, with Z received and these states; the output and the gradient that is followed."""
    client.prepare()
    models = {"received": Z} | {name: value for name, value in held.items() if isinstance(value, dict)}
    numbers = {name: X["linear.bias"].new_tensor(value) for name, value in held.items() if isinstance(value, float)}
    copy_into(
        client, numbers | {f"{of}.{escape(name)}": value for of, own in models.items() for name, value in own.items()}
    )
    output = client.run_step(method, given, number)
    return output, gradients(output, client.local_params)


# corrections reach the gradient, with the right sign


TERMS: dict[str, tuple[Callable[[], Client], dict[str, Any], Params]] = {
    "fedprox": (lambda: FedProx(tiny_net(), mu=0.6), {}, combine((0.6, X), (-0.6, Z))),
    "fedbc": (lambda: FedBC(tiny_net()), {"dual": 0.3}, combine((0.6, X), (-0.6, Z))),
    "scaffold": (lambda: Scaffold(tiny_net()), {"server_control": A, "control": B}, combine((1, A), (-1, B))),
    "feddyn": (
        lambda: FedDyn(tiny_net(), alpha=0.6),
        {"gradient": A, "prox": 0.6},
        combine((-1, A), (0.6, X), (-0.6, Z)),
    ),
    "fedfor": (lambda: FedFor(tiny_net(), strength=0.4), {"last_move": A}, combine((0.4, A))),
    "fedbcd": (lambda: FedBCD(tiny_net(), prox=0.6), {}, combine((0.6, X), (-0.6, Z))),
    "ditto": (lambda: Ditto(tiny_net(), prox=0.6), {"method": "personal_step"}, combine((0.6, X), (-0.6, Z))),
}


@pytest.mark.parametrize("name", TERMS)
def test_the_correction_is_in_the_gradient_with_its_sign(name: str) -> None:
    make, held, correction = TERMS[name]
    _, followed = stepped(make(), batch(), **held)
    assert largest_difference(followed, combine((1, slope(X, batch())), (1, correction))) <= 1e-14
    assert max(float(value.abs().max()) for value in correction.values()) > 0.1


def test_a_pull_of_fedbcd_i_is_the_way_to_the_received_model() -> None:
    _, followed = stepped(FedBCDI(tiny_net()), batch(), method="pull_step", penalty=1.0)
    assert largest_difference(followed, combine((1, X), (-1, Z))) <= 1e-14


def test_the_hinge_of_fedfor_acts_on_what_moves_against_the_server_alone() -> None:
    _, followed = stepped(FedFor(tiny_net(), strength=0.4, form="hinge"), batch(), last_move=A)
    against = {name: A[name] * (A[name] * (X[name] - Z[name]) > 0) for name in X}
    assert 0 < int(sum((value != 0).sum() for value in against.values())) < sum(v.numel() for v in X.values())
    assert largest_difference(followed, combine((1, slope(X, batch())), (0.4, against))) <= 1e-14


def test_the_exact_meta_gradient_differentiates_through_the_step() -> None:
    """On one batch it is the derivative of the loss after the step, which first order is not."""
    one, net = batch(), tiny_net()
    own = {name: value.clone().requires_grad_() for name, value in X.items()}
    first = torch.autograd.grad(
        cross_entropy(functional_call(net, own, (one.x,)), one.y), list(own.values()), create_graph=True
    )
    moved = {name: value - 0.3 * g for (name, value), g in zip(own.items(), first, strict=True)}
    whole = torch.autograd.grad(cross_entropy(functional_call(net, moved, (one.x,)), one.y), list(own.values()))
    derivative = dict(zip(own, whole, strict=True))
    _, exact = stepped(PerFedAvg(tiny_net(), adapt_lr=0.3), (one, one, one))
    _, short = stepped(PerFedAvg(tiny_net(), adapt_lr=0.3, form="fo"), (one, one))
    assert largest_difference(exact, derivative) <= 1e-14
    assert largest_difference(short, derivative) > 1e-3


# gradients between inner steps


@pytest.mark.parametrize("start", ["warm", "w"])
def test_inner_steps_of_pfedme_see_their_own_gradient_alone(start: Literal["warm", "w"]) -> None:
    client = PFedMe(tiny_net(), prox=4.0, personal_lr=0.1, inner_steps=5, inner_start=start)
    output, followed = stepped(client, batch(), number=1, personal=A)
    theta = A if start == "warm" else X
    for _ in range(5):
        theta = combine((1, theta), (-0.1, slope(theta, batch())), (-0.4, theta), (0.4, X))
    carried = {name: output.carried[f"personal.{escape(name)}"] for name in X}
    assert largest_difference(carried, theta) <= 1e-14
    assert largest_difference(followed, combine((4, X), (-4, theta))) <= 1e-13


def test_inner_steps_of_per_fedbc_see_their_own_gradient_alone() -> None:
    """The last batch's gradient alone is followed, at v, without the pull."""
    client = PerFedBC(tiny_net(), adapt_lr=0.2, adapt_steps=3)
    _, followed = stepped(client, tuple(batch(k) for k in range(4)), dual=0.3)
    v = X
    for k in range(3):
        v = combine((1, v), (-0.2, slope(v, batch(k))), (-0.2 * 0.6, v), (0.2 * 0.6, Z))
    assert largest_difference(followed, slope(v, batch(3))) <= 1e-14


def test_interleaved_steps_of_ditto_see_the_gradient_at_the_personal_model_alone() -> None:
    output, followed = stepped(Ditto(tiny_net(), prox=0.6, personal_lr=0.1, order="interleaved"), batch(), personal=A)
    v = combine((1, A), (-0.1, slope(A, batch())), (-0.06, A), (0.06, Z))
    assert largest_difference({name: output.carried[f"personal.{escape(name)}"] for name in X}, v) <= 1e-14
    assert largest_difference(followed, slope(X, batch())) <= 1e-14
