"""Mathematics on parameter dicts: name -> tensor, as in a state dict.

A *stacked* dict has the client as the first dimension of every tensor.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

Params = dict[str, Tensor]


def clone(params: Mapping[str, Tensor]) -> Params:
    """Detached copies that share no memory with the originals."""
    return {name: value.detach().clone() for name, value in params.items()}


def subtract(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Params:
    """a - b, name by name; either may be stacked."""
    return {name: a[name] - b[name] for name in a}


def scale(params: Mapping[str, Tensor], factor: float | Tensor) -> Params:
    """factor * params, for one factor."""
    return {name: value * factor for name, value in params.items()}


def dot(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensor:
    """<a, b> over all tensors of two unstacked dicts."""
    return torch.stack([(a[name] * b[name]).sum() for name in a]).sum()


def sq_norm(params: Mapping[str, Tensor]) -> Tensor:
    """|params|^2 of an unstacked dict."""
    return dot(params, params)


def stacked_sq_norm(params: Mapping[str, Tensor]) -> Tensor:
    """(clients,): |params_i|^2 of every client of a stacked dict."""
    return torch.stack([value.flatten(1).square().sum(1) for value in params.values()]).sum(0)


def weighted_mean(stacked: Mapping[str, Tensor], weights: Tensor) -> Params:
    """sum_i weights_i params_i, summed in float64 so that the mean of equal models is that model."""
    weights = weights.double()
    return {name: torch.tensordot(weights, value.double(), dims=1).to(value.dtype) for name, value in stacked.items()}


def expand(params: Mapping[str, Tensor], clients: int) -> Params:
    """The same model for every client, as views: no memory is copied."""
    return {name: value.detach().unsqueeze(0).expand(clients, *value.shape) for name, value in params.items()}


def row(stacked: Mapping[str, Tensor], k: int) -> Params:
    """The k-th client's tensors of a stacked dict, as views."""
    return {name: value[k] for name, value in stacked.items()}


def stack(rows: Sequence[Mapping[str, Tensor]]) -> Params:
    """The inverse, for all clients: one tensor per name, with the client as first dimension."""
    return {name: torch.stack([own[name] for own in rows]) for name in rows[0]}


def with_prefix(prefix: str, params: Mapping[str, Tensor]) -> Params:
    """{'weight': w} -> {'prefix.weight': w}."""
    return {f"{prefix}.{name}": value for name, value in params.items()}


def under_prefix(prefix: str, params: Mapping[str, Tensor]) -> Params:
    """The inverse: the entries below `prefix.`, without it."""
    start = f"{prefix}."
    return {name[len(start) :]: value for name, value in params.items() if name.startswith(start)}


def per_client(values: Tensor, like: Tensor) -> Tensor:
    """(clients,) -> a shape that broadcasts over a stacked tensor."""
    return values.view(-1, *[1] * (like.dim() - 1))


def load(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy values into the module's own parameters and buffers; aliases nothing."""
    own = dict(module.named_parameters()) | dict(module.named_buffers())
    with torch.no_grad():
        for name, value in tensors.items():
            own[name].copy_(value)
