"""Laws of the mathematics on parameter dicts, and of the local optimiser that is built on it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch import Tensor, nn

from fedlit.client.local_optimizers import LocalSGD
from fedlit.params import (
    Params,
    clone,
    concat_rows,
    dot,
    expand,
    scale,
    sq_norm,
    stacked_sq_norm,
    subtract,
    under_prefix,
    weighted_mean,
    with_prefix,
)

FLOATS32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
SHARES = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6)
PATIENT = settings(deadline=None, max_examples=50)  # a busy machine is not a failure


def model(seed: int, clients: int | None = None) -> Params:
    """A matrix and a vector in float64; stacked if a number of clients is given."""
    rng = np.random.default_rng(seed)
    lead = () if clients is None else (clients,)
    return {name: torch.from_numpy(rng.normal(size=(*lead, *shape))) for name, shape in (("w", (3, 2)), ("b", (2,)))}


def flat(params: Params) -> np.ndarray:
    return np.concatenate([value.numpy().ravel() for value in params.values()])


@PATIENT
@given(npst.arrays(np.float32, (2, 3), elements=FLOATS32), SHARES)
def test_weighted_mean_of_equal_models_is_that_model_bit_by_bit(values: np.ndarray, shares: list[float]) -> None:
    one = torch.from_numpy(values)
    mean = weighted_mean(expand({"w": one}, len(shares)), torch.tensor(shares, dtype=torch.float64) / sum(shares))
    assert torch.equal(mean["w"], one)


@PATIENT
@given(st.integers(0, 99), SHARES)
def test_weighted_mean_is_the_sum_of_weights_times_models(seed: int, shares: list[float]) -> None:
    stacked = model(seed, len(shares))
    mean = weighted_mean(stacked, torch.tensor(shares, dtype=torch.float64))
    expected = np.einsum("i,ijk->jk", np.array(shares), stacked["w"].numpy())
    np.testing.assert_allclose(mean["w"].numpy(), expected, rtol=1e-12, atol=1e-12 * sum(shares))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_weighted_mean_keeps_the_type_of_the_models(dtype: torch.dtype) -> None:
    assert weighted_mean({"w": torch.ones(3, 2, dtype=dtype)}, torch.full((3,), 1 / 3))["w"].dtype == dtype


def test_dot_is_the_inner_product_over_all_tensors() -> None:
    a, b = model(1), model(2)
    assert float(dot(a, b)) == pytest.approx(float(flat(a) @ flat(b)), rel=1e-14)


def test_squared_norm_has_no_factor_one_half() -> None:
    assert float(sq_norm({"w": torch.tensor([3.0]), "b": torch.tensor([4.0])})) == 25.0


def test_stacked_squared_norm_is_that_of_each_client_alone() -> None:
    stacked = model(1, clients=4)
    alone = [float(sq_norm({name: value[k] for name, value in stacked.items()})) for k in range(4)]
    assert stacked_sq_norm(stacked).tolist() == pytest.approx(alone, rel=1e-14)


def test_stacked_squared_norm_takes_a_parameter_of_one_number() -> None:
    stacked = {"scale": torch.tensor([1.0, 2.0, 3.0]), "w": torch.ones(3, 2, 2)}
    assert stacked_sq_norm(stacked).tolist() == [5.0, 8.0, 13.0]


def test_difference_of_a_stack_and_a_model_is_taken_client_by_client() -> None:
    stacked, one = model(1, clients=4), model(2)
    expected = torch.stack([stacked["w"][k] - one["w"] for k in range(4)])
    assert torch.equal(subtract(stacked, one)["w"], expected)


def test_scale_multiplies_every_tensor() -> None:
    assert flat(scale(model(1), 0.5)).tolist() == (0.5 * flat(model(1))).tolist()


def test_clone_shares_no_memory_and_no_graph() -> None:
    live = {"w": nn.Parameter(torch.ones(3))}
    copy = clone(live)
    copy["w"].add_(1)
    assert (live["w"].tolist(), copy["w"].requires_grad) == ([1.0, 1.0, 1.0], False)


def test_expand_copies_no_memory() -> None:
    one = model(1)
    assert expand(one, 1000)["w"].untyped_storage().data_ptr() == one["w"].untyped_storage().data_ptr()


def test_expand_gives_every_client_the_same_model() -> None:
    one = model(1)
    assert all(torch.equal(row, one["w"]) for row in expand(one, 5)["w"])


@pytest.mark.parametrize("shape", [(6000,), (6000, 2), (6000, 2, 3)])
def test_parts_of_one_tensor_are_put_together_without_a_copy(shape: tuple[int, ...]) -> None:
    whole = torch.randn(shape)
    parts = torch.split(whole, [2000, 3000, 1000])
    together = concat_rows(parts)
    assert torch.equal(together, whole)
    assert together.data_ptr() == whole.data_ptr()
    assert concat_rows(parts[1:]).data_ptr() == parts[1].data_ptr()


def test_parts_that_lie_elsewhere_or_in_another_order_are_copied() -> None:
    whole = torch.randn(6000, 2)
    first, last = whole[:4000], whole[4000:]
    same = first[:1].expand(3000, 2)
    narrow = [whole[:4000, :1], whole[4000:, :1]]
    for parts in ([last, first], [first, last.clone()], [first, same], [same, same], narrow, [first[:1], first[1:2]]):
        together = concat_rows(parts)
        assert torch.equal(together, torch.cat(parts))
        assert together.data_ptr() != parts[0].data_ptr()


def test_under_prefix_undoes_with_prefix_beside_other_entries() -> None:
    one = model(1)
    assert under_prefix("local", with_prefix("local", one) | with_prefix("locality", model(2))) == one


# ---- the local optimiser ---------------------------------------------------------------------------------------------


def problem() -> tuple[nn.Linear, Tensor, Tensor]:
    """Softmax regression in float64 whose gradients are larger than the limits below."""
    torch.manual_seed(5)
    net = nn.Linear(4, 3).double()
    return net, 5 * torch.randn(16, 4, dtype=torch.float64), torch.arange(16) % 3


def trained_by_torch(momentum: float, weight_decay: float, clip: float, steps: int) -> Params:
    net, x, y = problem()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=momentum, weight_decay=weight_decay)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
    return clone(dict(net.named_parameters()))


def trained_by_fedlit(momentum: float, weight_decay: float, clip: float | None, steps: int) -> Params:
    net, x, y = problem()
    params, optimizer = dict(net.named_parameters()), LocalSGD(momentum, weight_decay, clip)
    state = optimizer.init(params)
    for _ in range(steps):
        at = {name: value.detach().requires_grad_() for name, value in optimizer.point(params, state).items()}
        loss = nn.functional.cross_entropy(torch.func.functional_call(net, at, (x,)), y)
        grads = dict(zip(at, torch.autograd.grad(loss, list(at.values())), strict=True))
        params, state = optimizer.step(clone(at), grads, state, 0.1)
    return params


@pytest.mark.parametrize("clip", [0.3, 1e9], ids=["clipped", "unclipped"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.05], ids=["plain", "decayed"])
@pytest.mark.parametrize("momentum", [0.0, 0.9], ids=["still", "momentum"])
def test_local_sgd_equals_torch_sgd_after_clip_grad_norm(momentum: float, weight_decay: float, clip: float) -> None:
    theirs = trained_by_torch(momentum, weight_decay, clip, steps=8)
    ours = trained_by_fedlit(momentum, weight_decay, clip, steps=8)
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) <= 1e-12


def test_no_clip_equals_a_clip_that_is_never_reached() -> None:
    free, limited = (flat(trained_by_fedlit(0.9, 0.05, clip, steps=8)) for clip in (None, 1e9))
    assert free.tolist() == limited.tolist()


def test_clip_limits_the_length_of_a_step() -> None:
    params, grads = model(1), scale(model(2), 1e3)
    moved, _ = LocalSGD(clip=0.3).step(params, grads, {}, 1.0)
    assert float(sq_norm(subtract(params, moved)).sqrt()) == pytest.approx(0.3, rel=1e-6)


def test_a_step_changes_none_of_its_arguments() -> None:
    params, grads, optimizer = model(1), model(2), LocalSGD(momentum=0.9, weight_decay=0.1, clip=0.5)
    state = optimizer.init(params)
    optimizer.step(params, grads, state, 0.1)
    assert (flat(params).tolist(), flat(grads).tolist()) == (flat(model(1)).tolist(), flat(model(2)).tolist())
    assert flat(state).tolist() == [0.0] * 8


def test_a_step_takes_its_rate_as_a_number_or_a_tensor() -> None:
    params, grads = model(1), model(2)
    number, tensor = (LocalSGD().step(params, grads, {}, lr)[0] for lr in (0.25, torch.tensor(0.25)))
    assert flat(number).tolist() == flat(tensor).tolist()
