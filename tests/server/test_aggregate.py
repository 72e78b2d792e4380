"""Laws of the aggregation: from trained clients to the next global model."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedlit import ClientStates
from fedlit.client.cohort import Cohort
from fedlit.params import row, stack
from fedlit.server.aggregate import averaged_buffers, pseudo_gradients
from fedlit.server.optimizers import SGD
from fedlit.server.server import Server, move
from tests.server import make_cohort

WEIGHTS = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)


def net() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(4, 3).double()


def server(rate: float = 1.0) -> Server:
    return Server(net(), SGD(lr=rate).build, [], sizes=torch.ones(3), states=ClientStates())


def z_of(net: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in net.named_parameters()}


def trained(seed: int = 2) -> dict[str, Tensor]:
    """Stacked models of three clients."""
    rng = np.random.default_rng(seed)
    return {"weight": torch.from_numpy(rng.normal(size=(3, 3, 4))), "bias": torch.from_numpy(rng.normal(size=(3, 3)))}


def pseudo_gradient(z: dict[str, Tensor], cohort: Cohort, length: float) -> dict[str, Tensor]:
    """That of one server alone."""
    return row(pseudo_gradients(stack([z]), [replace(cohort, step_length=length)]), 0)


def mean_of(params: dict[str, Tensor], weights: Tensor = WEIGHTS) -> dict[str, np.ndarray]:
    return {name: np.einsum("i,i...->...", weights.numpy(), value.numpy()) for name, value in params.items()}


@pytest.mark.parametrize("step", [1.0, 0.25, 3.0])
def test_pseudo_gradient_is_the_step_times_the_way_from_the_mean_to_z(step: float) -> None:
    z = z_of(net())
    gradient = pseudo_gradient(z, make_cohort(params=trained(), weights=WEIGHTS), step)
    for name, mean in mean_of(trained()).items():
        np.testing.assert_allclose(gradient[name].numpy(), step * (z[name].numpy() - mean), rtol=0, atol=1e-15)


def test_pseudo_gradient_of_clients_that_stayed_is_exactly_zero() -> None:
    z = {name: value.float() for name, value in z_of(net()).items()}
    stayed = {name: value.expand(3, *value.shape) for name, value in z.items()}
    gradient = pseudo_gradient(z, make_cohort(params=stayed, weights=WEIGHTS), 1.0)
    assert all(not value.any() for value in gradient.values())


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_server_sgd_moves_z_its_rate_of_the_way_to_the_mean(rate: float) -> None:
    moving = server(rate)
    z = moving.z
    move([moving], [pseudo_gradient(z, make_cohort(params=trained(), weights=WEIGHTS), 1.0)], [{}])
    for name, mean in mean_of(trained()).items():
        expected = (1 - rate) * z[name].numpy() + rate * mean
        np.testing.assert_allclose(moving.z[name].numpy(), expected, rtol=0, atol=1e-14)


def test_clients_without_weight_do_not_move_z() -> None:
    z, weights = z_of(net()), torch.tensor([0.4, 0.6, 0.0], dtype=torch.float64)
    other = trained()
    other["weight"][2] += 7
    with_other, without = (
        pseudo_gradient(z, make_cohort(params=params, weights=weights), 1.0) for params in (other, trained())
    )
    assert torch.equal(with_other["weight"], without["weight"])


def test_pseudo_gradients_of_several_servers_are_those_of_each_alone() -> None:
    """Bit for bit, whatever their cohorts' sizes and the lengths of their steps."""
    z = [z_of(net()), {name: value + 1 for name, value in z_of(net()).items()}]
    two = {name: value[:2] for name, value in trained(3).items()}
    cohorts = [
        make_cohort(params=trained(), weights=WEIGHTS),
        make_cohort((5, 10), params=two, weights=torch.tensor([0.1, 0.9], dtype=torch.float64)),
    ]
    lengths = [replace(cohort, step_length=own) for cohort, own in zip(cohorts, (1.0, 0.25), strict=True)]
    together = pseudo_gradients(stack(z), lengths)
    for place, length in enumerate((1.0, 0.25)):
        alone = pseudo_gradient(z[place], cohorts[place], length)
        assert all(torch.equal(value, together[name][place]) for name, value in alone.items())


def test_server_step_leaves_no_gradient_behind() -> None:
    moving = server()
    move([moving], [moving.z], [{}])
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in moving.params.values())


def test_what_is_fixed_does_not_move() -> None:
    moving = server()
    z = moving.z
    move([moving], [moving.z], [{}], fixed=frozenset({"bias"}))
    assert torch.equal(moving.z["bias"], z["bias"])
    assert not moving.z["weight"].any()


def test_float_buffers_are_averaged_with_the_weights() -> None:
    statistics = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    averaged = averaged_buffers([make_cohort(buffers={"running_mean": statistics}, weights=WEIGHTS)])
    assert averaged["running_mean"][0].tolist() == pytest.approx([0.2 + 0.9 + 2.5, 0.4 + 1.2 + 3.0])


def test_counters_are_the_largest_of_the_reporting_clients() -> None:
    counts = torch.tensor([[19, 8], [8, 7], [9, 3]])
    cohort = make_cohort(reports=[False, True, True], buffers={"count": counts[:, 0], "two": counts}, weights=WEIGHTS)
    averaged = averaged_buffers([cohort])
    assert averaged["count"].tolist() == [9]
    assert averaged["two"].tolist() == [[9, 7]]
