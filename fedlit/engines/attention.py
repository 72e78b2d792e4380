"""Attention in compiled programs, as products and a softmax: torch's own operator would be a call within the loop.

A program whose loop calls an operator of torch makes a tensor of every buffer, which C++ compilers need minutes for.
The products are then fedlit's, too (`matmul.py`). torch's operator, which keeps no weights, stays where they are many.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor

MOST_WEIGHTS = 1 << 24
"""Most attention weights of a batch that are kept in memory."""


def weights(
    query: Tensor, key: Tensor, is_causal: bool, attn_mask: Tensor | None, scale: float | None
) -> tuple[Tensor, Tensor]:
    """(rows, heads, steps, steps) weights that sum to 1, or to 0 where all is hidden; and the sums' logarithms."""
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    sums = scores.logsumexp(-1)
    return (scores - sums.masked_fill(sums == -torch.inf, 0.0).unsqueeze(-1)).exp(), sums


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """The output, in the order of memory that torch's has, and the logarithms of the sums."""
    if not is_written_out(query, key, dropout_p):
        return NotImplemented
    shares, sums = weights(query, key, is_causal, attn_mask, scale)
    return (shares @ value).transpose(1, 2).contiguous().transpose(1, 2), sums


def attention_back(
    slope: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    sums: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """The gradients of query, key and value."""
    if not is_written_out(query, key, dropout_p):
        return NotImplemented
    shares, _ = weights(query, key, is_causal, attn_mask, scale)
    mean = (slope * output).sum(-1, keepdim=True)
    of_scores = shares * (slope @ value.mT - mean) * (query.shape[-1] ** -0.5 if scale is None else scale)
    return of_scores @ key, of_scores.mT @ query, shares.mT @ slope


def is_written_out(query: Tensor, key: Tensor, dropout_p: float) -> bool:
    """Whether a program can have this attention as products; with another number of heads they would be repeated."""
    count = prod(query.shape[:-1]) * key.shape[-2]
    return dropout_p == 0 and query.shape[1] == key.shape[1] and count <= MOST_WEIGHTS
