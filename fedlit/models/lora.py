"""LoRA: low-rank adapters of the layers of any torch net (Hu et al., arXiv 2106.09685).

    y = W x + b + (alpha / rank) B A x        W and b are frozen; A and B are trained, and B starts at 0

An adapted layer keeps the names of its weights, so that a file with the weights of the net alone still fits it.
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from fedlit.errors import nearest, require
from fedlit.recorded import Recorded


class LoRA(Recorded, nn.Module):
    """A net whose own weights are frozen, with adapters for some of its layers. The net is changed in place.

    Args:
        net: the net; its layers nn.Linear, nn.Embedding, nn.Conv2d and nn.MultiheadAttention can have adapters.
        rank: r: rows of A and columns of B.
        targets: which of these layers have one: names of modules, or patterns with *, one or a list; all by default.
        alpha: adapters are multiplied by alpha / rank; by default by 1.
    """

    def __init__(
        self, net: nn.Module, rank: int = 4, targets: str | Sequence[str] = "*", alpha: float | None = None
    ) -> None:
        super().__init__()
        require(rank >= 1, f"LoRA.rank is {rank}; give 1 or more.")
        net.requires_grad_(False)
        for layer in adaptable(net, [targets] if isinstance(targets, str) else targets):
            layer.__class__ = ADAPTED[type(layer)]
            assert isinstance(layer, Adapted)
            layer.add_adapter(rank, 1.0 if alpha is None else alpha / rank)
        for layer in net.modules():
            if isinstance(layer, nn.TransformerEncoderLayer):
                layer.activation_relu_or_gelu = 0  # its fast path in evaluation would pass the adapters by
        self.net = net
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every A, and set every B to 0."""
        for layer in self.net.modules():
            if isinstance(layer, Adapted):
                nn.init.kaiming_uniform_(layer.lora_A, a=5**0.5)  # as torch draws the weights of nn.Linear
                nn.init.zeros_(layer.lora_B)

    def forward(self, *args: Any, **named: Any) -> Any:
        """The net's output."""
        return self.net(*args, **named)


class Adapted(nn.Module):
    """A layer with an adapter. Of `sizes` and `forward` each kind of layer has its own."""

    lora_A: nn.Parameter
    lora_B: nn.Parameter

    def add_adapter(self, rank: int, scale: float) -> None:
        """Give the layer A and B, in the type and on the device of its weights."""
        like, (inputs, outputs) = next(self.parameters()), self.sizes(rank)
        self.lora_scale = scale
        self.lora_A, self.lora_B = nn.Parameter(like.new_empty(inputs)), nn.Parameter(like.new_empty(outputs))

    def sizes(self, rank: int) -> tuple[Sequence[int], Sequence[int]]:
        """The shapes of A and B."""
        raise NotImplementedError


class AdaptedLinear(Adapted, nn.Linear):
    """W x + b + scale B A x."""

    def sizes(self, rank: int) -> tuple[Sequence[int], Sequence[int]]:
        """(r, in) and (out, r)."""
        return (rank, self.in_features), (self.out_features, rank)

    def forward(self, x: Tensor) -> Tensor:
        """Two thin products beside the layer's own."""
        return super().forward(x) + self.lora_scale * F.linear(F.linear(x, self.lora_A), self.lora_B)


class AdaptedEmbedding(Adapted, nn.Embedding):
    """Row x of W + scale (B A)^T."""

    def sizes(self, rank: int) -> tuple[Sequence[int], Sequence[int]]:
        """(r, entries) and (width, r)."""
        return (rank, self.num_embeddings), (self.embedding_dim, rank)

    def forward(self, x: Tensor) -> Tensor:
        """Only the rows that are looked up are computed."""
        return super().forward(x) + self.lora_scale * F.linear(F.embedding(x, self.lora_A.t()), self.lora_B)


class AdaptedConv2d(Adapted, nn.Conv2d):
    """The convolution, and one with r channels that a 1x1 convolution follows."""

    def sizes(self, rank: int) -> tuple[Sequence[int], Sequence[int]]:
        """(r, in, height, width) and (out, r, 1, 1)."""
        return (rank, self.in_channels, *self.kernel_size), (self.out_channels, rank, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """With the layer's own stride, padding and dilation."""
        thin = F.conv2d(x, self.lora_A, None, self.stride, self.padding, self.dilation)
        return super().forward(x) + self.lora_scale * F.conv2d(thin, self.lora_B)


class AdaptedAttention(Adapted, nn.MultiheadAttention):
    """The projection of queries, keys and values in one, which torch reads as a weight: W + scale B A."""

    def sizes(self, rank: int) -> tuple[Sequence[int], Sequence[int]]:
        """(r, width) and (3 width, r)."""
        return (rank, self.embed_dim), (3 * self.embed_dim, rank)

    def __getattr__(self, name: str) -> Any:
        value: Any = super().__getattr__(name)
        return value + self.lora_scale * (self.lora_B @ self.lora_A) if name == "in_proj_weight" else value


ADAPTED: dict[type[nn.Module], type[Adapted]] = {
    nn.Linear: AdaptedLinear,
    nn.Embedding: AdaptedEmbedding,
    nn.Conv2d: AdaptedConv2d,
    nn.MultiheadAttention: AdaptedAttention,
}


def adaptable(net: nn.Module, targets: Sequence[str]) -> list[nn.Module]:
    """The layers of these parts that can have an adapter; ConfigError for a part without any."""
    layers = dict(net.named_modules())
    suited = {name: layer for name, layer in layers.items() if is_adaptable(layer)}
    found: dict[str, nn.Module] = {}
    for target in targets:
        known = [name for name in layers if any(fnmatchcase(whole, target) for whole in wholes(name))]
        require(
            len(known) > 0,
            f"LoRA.targets has '{target}', but {type(net).__name__} has no such module. "
            f"{nearest(target, [name for name in layers if name])}Layers that can have an adapter: "
            f"{', '.join(suited) or 'none'}.",
        )
        chosen = {name: suited[name] for name in known if name in suited}
        require(
            len(chosen) > 0,
            f"LoRA.targets has '{target}', which is a {type(layers[known[0]]).__name__}: no layer in it can have an "
            f"adapter, as nn.Linear, nn.Embedding, nn.Conv2d (without groups) and nn.MultiheadAttention can. Those of "
            f"{type(net).__name__}: {', '.join(suited) or 'none'}.",
        )
        found |= chosen
    return [layer for name, layer in layers.items() if name in found]


def is_adaptable(layer: nn.Module) -> bool:
    """Whether a layer can have an adapter; a subclass may not call what the adapter changes."""
    if type(layer) not in ADAPTED:
        return False
    if isinstance(layer, nn.Conv2d):
        return layer.groups == 1 and layer.padding_mode == "zeros"
    return not isinstance(layer, nn.MultiheadAttention) or layer.in_proj_weight is not None


def wholes(name: str) -> Iterator[str]:
    """A module and those around it: a.b.c, a.b, a; the net itself is an empty text."""
    yield name
    while "." in name:
        name = name.rpartition(".")[0]
        yield name
