"""Attention written out for compiled programs, against torch's own operator."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad
from torch.fx.experimental.proxy_tensor import make_fx

from fedlit.engines import attention
from fedlit.engines.compiler import lean_decompositions

ROWS, HEADS, STEPS, WIDTH = 3, 2, 7, 4


def mask(kind: str) -> list[Tensor]:
    """For `hidden`, one position sees nothing at all."""
    if kind == "added":
        return [torch.randn(STEPS, STEPS, dtype=torch.float64)]
    seen = torch.rand(STEPS, STEPS) > 0.3
    seen[2] = False
    return [seen] if kind == "hidden" else []


@pytest.mark.parametrize(("kind", "causal"), [("none", False), ("none", True), ("hidden", False), ("added", False)])
def test_outputs_and_gradients_are_torchs(kind: str, causal: bool) -> None:
    torch.manual_seed(0)
    inputs = [*torch.randn(3, ROWS, HEADS, STEPS, WIDTH, dtype=torch.float64), *mask(kind)]

    def loss(query: Tensor, key: Tensor, value: Tensor, *attn_mask: Tensor) -> Tensor:
        output = F.scaled_dot_product_attention(query, key, value, *attn_mask, is_causal=causal)
        return output.transpose(1, 2).flatten(2).sin().sum()

    slopes = grad(loss, argnums=(0, 1, 2))
    graph = make_fx(slopes, tracing_mode="fake", decomposition_table=lean_decompositions(beside=False))(*inputs)
    assert not [node for node in graph.graph.nodes if "attention" in str(node.target)]
    for ours, theirs in zip(graph_of_torch(graph)(*inputs), slopes(*inputs), strict=True):
        assert float((ours - theirs).abs().max()) < 1e-13


def graph_of_torch(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """With torch's product again: fedlit's exists in compiled programs alone."""
    from fedlit.engines.matmul import PRODUCT

    for node in graph.graph.find_nodes(op="call_function", target=PRODUCT):
        node.target = torch.ops.aten.bmm.default
    graph.recompile()
    return graph


def test_many_weights_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "MOST_WEIGHTS", ROWS * HEADS * STEPS * STEPS - 1)
    query, key, value = torch.randn(3, ROWS, HEADS, STEPS, WIDTH)
    assert attention.attention(query, key, value) is NotImplemented
