"""Direct convolutions and pools against torch's: shapes, strides, padding, dilation, groups, ties; who gets them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._inductor.lowering import needs_realized_inputs
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from fedlit import FedAvg, LeNet, PerFedAvg
from fedlit.client.base import Client
from fedlit.engines import convolution
from fedlit.engines.choose import EngineChoice, Request, choose
from fedlit.engines.compiler import (
    compile_program,
    direct_decompositions,
    missing_convolution,
    prepare_direct_convolution,
)
from fedlit.engines.convolution import DECOMPOSITIONS, OPERATORS
from tests.problems import CLASSES, largest_difference, run, tiny_data, weights_of


@pytest.fixture(scope="module", autouse=True)
def operators_are_built() -> None:
    """Here, and not when tests are collected: every process of a session would build them at the same time."""
    if (reason := missing_convolution()) is not None:
        pytest.skip(reason)


aten = torch.ops.aten
ALLOWED = {torch.float32: 2e-5, torch.float64: 1e-13}
"""Relative to the largest number: another order of summation."""
COMMON = settings(max_examples=60, deadline=None, derandomize=True)


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of aten.convolution whose result is not empty; 8 rows at least, full vectors and ragged ones."""
    both = st.tuples
    groups = draw(st.integers(1, 3))
    kernel, stride, padding, dilation = (
        draw(both(st.integers(low, high), st.integers(low, high))) for low, high in ((1, 4), (1, 3), (0, 3), (1, 2))
    )
    smallest = [max(1, d * (k - 1) + 1 - 2 * p) for k, p, d in zip(kernel, padding, dilation, strict=True)]
    size = [draw(st.integers(least, least + 6)) for least in smallest]
    rows, channels, filters = draw(st.integers(8, 35)), draw(st.integers(1, 5)), draw(st.integers(1, 9))
    dtype = draw(st.sampled_from(list(ALLOWED)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    x = torch.randn(rows, groups * channels, *size, generator=generator, dtype=dtype)
    weight = torch.randn(groups * filters, channels, *kernel, generator=generator, dtype=dtype)
    bias = torch.randn(groups * filters, generator=generator, dtype=dtype) if draw(st.booleans()) else None
    geometry = (stride, padding, dilation, False, (0, 0), groups)
    return {"x": x, "weight": weight, "bias": bias, "geometry": geometry, "innermost": draw(st.booleans())}


def assert_close(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    allowed = ALLOWED[expected.dtype] * max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found, expected, rtol=0, atol=allowed)


def laid_out(x: Tensor, innermost: bool) -> Tensor:
    """The same numbers, with the samples innermost where asked for."""
    return x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2) if innermost else x


@given(convolutions())
@COMMON
def test_convolution_gives_torchs_numbers(given: dict[str, Any]) -> None:
    x = laid_out(given["x"], given["innermost"])
    expected = aten.convolution(given["x"], given["weight"], given["bias"], *given["geometry"])
    assert_close(convolution.convolution(x, given["weight"], given["bias"], *given["geometry"]), expected)


@given(convolutions())
@COMMON
def test_gradients_of_a_convolution_are_torchs(given: dict[str, Any]) -> None:
    x, weight, geometry = given["x"], given["weight"], given["geometry"]
    slope = torch.randn_like(aten.convolution(x, weight, None, *geometry))
    rest = ([len(weight)], *geometry, [True, True, True])
    expected = aten.convolution_backward(slope, x, weight, *rest)
    turned = laid_out(x, given["innermost"])
    for found, one in zip(convolution.convolution_backward(slope, turned, weight, *rest), expected, strict=True):
        assert_close(found, one)


def test_gradients_that_are_not_wanted_are_not_computed() -> None:
    x, weight = torch.randn(8, 1, 6, 6), torch.randn(2, 1, 3, 3)
    rest = ([2], (1, 1), (0, 0), (1, 1), False, (0, 0), 1, [False, True, False])
    of_x, of_weight, of_bias = convolution.convolution_backward(torch.randn(8, 2, 4, 4), x, weight, *rest)
    assert of_x is None
    assert of_bias is None
    assert of_weight.shape == weight.shape


@pytest.mark.parametrize(
    ("x", "transposed"),
    [
        (torch.zeros(7, 1, 6, 6), False),
        (torch.zeros(8, 1, 6), False),
        (torch.zeros(8, 1, 6, 6), True),
        (torch.zeros(8, 1, 6, 6, dtype=torch.bfloat16), False),
    ],
    ids=["few rows", "one dimension", "transposed", "short numbers"],
)
def test_what_the_operators_cannot_do_stays_torchs(x: Tensor, transposed: bool) -> None:
    weight = x.new_zeros(1, 1, *[3] * (x.dim() - 2))
    ones, zeros = (1,) * (x.dim() - 2), (0,) * (x.dim() - 2)
    assert convolution.convolution(x, weight, None, ones, zeros, ones, transposed, zeros, 1) is NotImplemented


@given(
    rows=st.integers(1, 9),
    size=st.tuples(st.integers(4, 9), st.integers(4, 9)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    dtype=st.sampled_from(list(ALLOWED)),
    innermost=st.booleans(),
    seed=st.integers(0, 2**16),
)
@COMMON
def test_pools_are_torchs_to_the_bit_also_where_numbers_are_equal(
    rows: int, size: tuple[int, int], kernel: tuple[int, int], dtype: torch.dtype, innermost: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-2, 3, (rows, 2, *size), generator=generator).to(dtype)  # many are equal
    window = (kernel, kernel, (0, 0), (1, 1), False)
    best, indices = aten.max_pool2d_with_indices(x, *window)
    slope = torch.randn(best.shape, generator=generator, dtype=dtype)
    turned = laid_out(x, innermost)
    found = convolution.max_pool(turned, *window)
    assert torch.equal(found[0], best)
    assert torch.equal(found[1], indices)
    expected = aten.max_pool2d_with_indices_backward(slope, x, *window, indices)
    assert torch.equal(convolution.max_pool_backward(slope, turned, *window, indices), expected)


def test_a_pool_finds_nan_as_torch_does() -> None:
    x = torch.tensor([[1.0, torch.nan], [2.0, torch.nan]]).expand(8, 1, 2, 2).contiguous()
    best, indices = aten.max_pool2d_with_indices(x, [2, 2])
    found = convolution.max_pool(x, [2, 2])
    torch.testing.assert_close(found[0], best, equal_nan=True)
    assert torch.equal(found[1], indices)


@pytest.mark.parametrize(
    "window",
    [([3, 3], [2, 2]), ([2, 2], [2, 2], [1, 1]), ([2, 2], [2, 2], [0, 0], [2, 2]), ([2, 2], [2, 2], [0], [1], True)],
    ids=["overlapping", "padded", "dilated", "ceiling"],
)
def test_other_pools_stay_torchs(window: tuple[Any, ...]) -> None:
    x = torch.zeros(8, 1, 7, 7)
    assert convolution.max_pool(x, *window) is NotImplemented
    assert convolution.max_pool_backward(x, x, *window, None) is NotImplemented


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    order=st.permutations(range(4)),
    parts=st.lists(st.integers(1, 4), min_size=0, max_size=3),
)
@COMMON
def test_a_view_is_a_copy_exactly_where_torch_would_refuse_it(
    sizes: list[int], order: list[int], parts: list[int]
) -> None:
    x = torch.zeros(sizes).permute([k for k in order if k < len(sizes)])
    shapes = [[*parts, -1]] if x.numel() % max(1, int(np.prod(parts))) == 0 else []
    for shape in [*shapes, [x.numel()], list(reversed(x.shape))]:
        try:
            x.view(shape)
            possible = True
        except RuntimeError:
            possible = False
        found = convolution.view(x, shape)
        assert (found is NotImplemented) == possible
        assert possible or torch.equal(found, x.reshape(shape))


# ---- in programs -----------------------------------------------------------------------------------------------------


class Viewing(nn.Module):
    """Views the output of a convolution as torch lays it out, which direct ones do not."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        planes = F.max_pool2d(torch.relu(self.conv(x)), 2).view(len(x) * 4, -1)
        return self.head((planes + 1).view(len(x), 4, 16).mean(1))


class Twice(nn.Module):
    """Two convolutions and pools, one of each strided or overlapping."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 3, 3, stride=2, padding=1)
        self.second = nn.Conv2d(3, 5, 2, dilation=2, bias=False)
        self.head = nn.Linear(20, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = F.max_pool2d(self.second(torch.relu(self.first(x))), 2, stride=1, padding=1)[..., :2, :2]
        return self.head(x.flatten(1))


def double(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    return make().double()


LOCAL = {"lr": 0.05, "batch_size": 9, "local_epochs": 2}
PICTURES = (2, 8, 8)


@pytest.mark.parametrize(
    ("net", "lanes"), [(Viewing, 1), *(pytest.param(Twice, lanes, marks=pytest.mark.slow) for lanes in (1, 2))]
)
def test_direct_program_equals_sequential(net: type[nn.Module], lanes: int) -> None:
    slow = run(FedAvg(double(net), **LOCAL), tiny_data((20, 31, 12, 40), PICTURES), rounds=2)
    fast = run(
        FedAvg(double(net), **LOCAL),
        tiny_data((20, 31, 12, 40), PICTURES),
        rounds=2,
        engine="vectorized",
        compiled=True,
        lanes=lanes,
    )
    assert fast.summary["convolution"] == "direct"
    assert largest_difference(weights_of(slow), weights_of(fast)) <= 1e-10


def operators_in(function: Callable[..., Any], *args: Tensor) -> set[Any]:
    """What a traced function calls."""
    traced = make_fx(function, tracing_mode="fake", decomposition_table=DECOMPOSITIONS)(*args)
    return {node.target for node in traced.graph.nodes}


def test_lanes_are_groups_of_one_direct_convolution() -> None:
    def loss(weight: Tensor, x: Tensor) -> Tensor:
        return F.conv2d(x, weight).square().sum()

    weights, x = torch.randn(3, 4, 2, 3, 3, dtype=torch.float64), torch.randn(3, 8, 2, 6, 6, dtype=torch.float64)
    called = operators_in(vmap(grad(loss)), weights, x)
    assert {OPERATORS[1], OPERATORS[3]} <= called
    assert not {aten.convolution.default, aten.convolution_backward.default} & called
    traced = make_fx(vmap(grad(loss)), decomposition_table=DECOMPOSITIONS)(weights, x)
    assert_close(traced(weights, x), vmap(grad(loss))(weights, x))


def weight_step(weight: Tensor, x: Tensor) -> tuple[Tensor]:
    """Forward and gradient of the weights read the same picture."""
    return (grad(lambda at: F.conv2d(x, at).square().sum())(weight),)


def weight_and_picture() -> list[Tensor]:
    return [torch.randn(4, 2, 3, 3, dtype=torch.float64), torch.randn(8, 2, 6, 6, dtype=torch.float64)]


def test_a_picture_is_packed_once() -> None:
    traced = make_fx(weight_step, tracing_mode="fake", decomposition_table=DECOMPOSITIONS)(*weight_and_picture())
    assert [node.target for node in traced.graph.nodes].count(OPERATORS[0]) == 2
    prepare_direct_convolution(traced)
    assert [node.target for node in traced.graph.nodes].count(OPERATORS[0]) == 1


def test_what_feeds_an_operator_is_not_stored_before_it_also_in_a_second_program() -> None:
    args = weight_and_picture()
    for _ in range(2):
        compiled = compile_program(weight_step, args, direct_convolution=True)
        assert not set(OPERATORS) & set(needs_realized_inputs)
    assert_close(compiled(*args)[0], weight_step(*args)[0])


@pytest.mark.parametrize("dtype", list(ALLOWED), ids=str)
@pytest.mark.parametrize("shape", [(64, 3, 32, 32), (9, 2, 5, 3), (8, 1, 1, 1), (33, 3, 7, 9)], ids=str)
def test_pictures_of_bytes_become_the_same_numbers(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    def gathered(x: Tensor, index: Tensor) -> Tensor:
        return x.index_select(0, index).to(dtype) * 2

    x = torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    index = torch.arange(2 * len(x)) % len(x)
    traced = make_fx(gathered, tracing_mode="fake", decomposition_table=direct_decompositions())(x, index)
    called = {node.target for node in traced.graph.nodes}
    assert {torch.ops.fedlit.take.default, torch.ops.fedlit.pack_bytes.default} <= called
    assert torch.equal(traced(x, index), gathered(x, index))


@pytest.mark.parametrize("number", [-1, 12])
def test_a_picture_that_does_not_exist_is_an_error(number: int) -> None:
    with pytest.raises(RuntimeError, match="does not exist"):
        torch.ops.fedlit.take(torch.zeros(12, 1, 2, 2, dtype=torch.uint8), torch.tensor([number]))


# ---- which nets ------------------------------------------------------------------------------------------------------


def chosen(client: Client, sample: Sequence[int], **request: Any) -> EngineChoice:
    asked = Request(**{"engine": "vectorized", "compiled": True, **request})
    return choose(asked, client, np.full(6, 10), per_round=4, rounds=10, sample=torch.rand(*sample))


def test_lenet_gets_direct_convolutions_and_the_engines_line_says_so() -> None:
    choice = chosen(FedAvg(LeNet(), batch_size=20), (3, 32, 32))
    assert choice.convolution == "direct"
    assert "compiled, direct convolutions (" in choice.line()


def wide(**options: Any) -> nn.Module:
    return nn.Sequential(nn.Conv2d(32, 8, 5, **options), nn.Flatten(), nn.Linear(8 * 16, 2))


TORCHS: dict[str, tuple[Callable[[], Client], tuple[int, ...], str]] = {
    "many products": (lambda: FedAvg(wide(), batch_size=20), (32, 8, 8), "sums 800 products, more than 300"),
    "few rows": (lambda: FedAvg(LeNet(), batch_size=4), (3, 32, 32), "a batch has 4 rows, fewer than 8"),
    "groups": (lambda: FedAvg(wide(groups=8), batch_size=20), (32, 8, 8), "not a plain convolution"),
    "second derivatives": (
        lambda: PerFedAvg(LeNet(), adapt_lr=0.01, batch_size=10),
        (3, 32, 32),
        "not a plain convolution",
    ),
}


@pytest.mark.parametrize("case", TORCHS)
def test_other_steps_keep_torchs_convolutions_and_say_why(case: str) -> None:
    client, sample, why = TORCHS[case]
    choice = chosen(client(), sample)
    assert choice.convolution == "torch"
    assert why in choice.line()


@pytest.mark.parametrize("form", [{"engine": "sequential"}, {"compiled": False}], ids=["sequential", "eager"])
def test_only_compiled_programs_have_direct_convolutions(form: dict[str, Any]) -> None:
    assert chosen(FedAvg(LeNet(), batch_size=20), (3, 32, 32), **form).convolution == "torch"


def test_a_run_that_was_recorded_before_is_resumed_with_torchs_convolutions() -> None:
    recorded = {
        "engine": "vectorized",
        "lanes": 1,
        "workers": 2,
        "compiled": True,
        "capacity": 64,
        "threads": 1,
        "why": "",
    }
    assert EngineChoice(**recorded).convolution == "torch"
