"""Mathematics on parameter dicts: name -> tensor, as in a state dict.

A *stacked* dict has the client as the first dimension of every tensor.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

Params = dict[str, Tensor]
_FEW = 1024
"""Below this size, copying is faster than checking whether parts are adjacent."""


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
    first, *others = (_sum_of_each(value.square()) for value in params.values())
    return sum(others, first)


def _sum_of_each(stacked: Tensor) -> Tensor:
    """(clients,): the sum of each client's values. An empty list of dimensions would mean all of them to torch."""
    return stacked.sum(tuple(range(1, stacked.dim()))) if stacked.dim() > 1 else stacked


def weighted_mean(stacked: Mapping[str, Tensor], weights: Tensor) -> Params:
    """sum_i weights_i params_i, summed in float64 so that the mean of equal models is that model."""
    return row(weighted_means(stacked, weights, [weights.numel()]), 0)


def weighted_means(stacked: Mapping[str, Tensor], weights: Tensor, counts: Sequence[int]) -> Params:
    """The weighted means of several cohorts: cohort k is the next `counts[k]` clients, and row k of the result.

    Each mean is a separate product into new memory: one product for all has not always the same bits.
    """
    shares = torch.split(weights.double().unsqueeze(0), [*counts], 1)

    def mean(values: Tensor) -> Tensor:
        whole = values.double()
        rows = whole.flatten(1) if whole.dim() > 1 else whole.unsqueeze(1)
        each = [torch.mm(*pair) for pair in zip(shares, torch.split(rows, [*counts]), strict=True)]
        means = torch.cat(each) if len(each) > 1 else each[0]
        return means.view(len(counts), *whole.shape[1:]).to(values.dtype)

    return {name: mean(value) for name, value in stacked.items()}


def concat_rows(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate along the first dimension; large parts that are adjacent in memory give a view, without a copy."""
    first, end = parts[0], parts[0].data_ptr()
    if len(parts) == 1:
        return first
    if first.numel() < _FEW:
        return torch.cat([*parts])
    for part in parts:
        if part.data_ptr() != end or not part.is_contiguous():
            return torch.cat([*parts])
        end += part.numel() * part.element_size()
    memory = first.untyped_storage()
    if end > memory.data_ptr() + memory.nbytes():  # separate tensors that are adjacent by chance
        return torch.cat([*parts])
    row = first.shape[1:]
    count = sum(part.shape[0] for part in parts)  # len() of a tensor takes five times as long
    return first.as_strided((count, *row), (row.numel(), *first.stride()[1:]))


def concat_all_rows(parts: Sequence[Mapping[str, Tensor]]) -> Params:
    """`concat_rows` for stacked dicts, name by name."""
    return {name: concat_rows([part[name] for part in parts]) for name in parts[0]}


def expand(params: Mapping[str, Tensor], clients: int) -> Params:
    """The same model for every client, as views: no memory is copied."""
    return {name: value.detach().expand(clients, *value.shape) for name, value in params.items()}


def row(stacked: Mapping[str, Tensor], k: int) -> Params:
    """The k-th client's tensors of a stacked dict, as views."""
    return {name: value[k] for name, value in stacked.items()}


def unstack(stacked: Mapping[str, Tensor], count: int) -> list[Params]:
    """A dict of views for each of `count` clients; empty dicts if there are no tensors."""
    columns = [value.unbind() for value in stacked.values()]
    rows = [dict(zip(stacked, values, strict=True)) for values in zip(*columns, strict=True)]
    return rows or [{} for _ in range(count)]


def stack(rows: Sequence[Mapping[str, Tensor]]) -> Params:
    """The inverse of `unstack`: one tensor per name, with the client as first dimension."""
    return {name: torch.stack([params[name] for params in rows]) for name in rows[0]}


def with_prefix(prefix: str, params: Mapping[str, Tensor]) -> Params:
    """{'weight': w} -> {'prefix.weight': w}."""
    return {f"{prefix}.{name}": value for name, value in params.items()}


def under_prefix(prefix: str, params: Mapping[str, Tensor]) -> Params:
    """The inverse of `with_prefix`: the entries that begin with `prefix.`, without it."""
    start = f"{prefix}."
    return {name[len(start) :]: value for name, value in params.items() if name.startswith(start)}


def per_client(values: Tensor, like: Tensor) -> Tensor:
    """(clients,) -> a shape that broadcasts over a stacked tensor."""
    return values.view(-1, *[1] * (like.dim() - 1))


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The dtype, but float32 for 16-bit floats: a mean needs more digits than those have."""
    return torch.promote_types(dtype, torch.float32) if dtype.is_floating_point else dtype


def copy_into(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy values into the module's own parameters and buffers; no memory is shared afterwards."""
    overwrite(dict(module.named_parameters()) | dict(module.named_buffers()), tensors)


def overwrite(targets: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copy values into the tensors of the same names; no memory is shared afterwards."""
    with torch.no_grad():
        for name, value in tensors.items():
            targets[name].copy_(value)
