"""A fingerprint of what a net computes: a net with another activation is another net, even if its code hides it.

Class and layers do not show which functions a `forward` calls, and its source does not show what a function of another
file does. So the net is run: one pass in evaluation mode over a fixed input with fixed weights. This works for any
nn.Module and costs one forward pass over two rows. The net itself is not changed.

The input has the shape of the data's samples. Input and weights are the same in every process. The pass is in float64
if the net allows it, and its output is rounded to six digits of the largest number, so that threads and processors that
add in another order do not matter. Dropout does not show here, but in the description of layers and code.
"""

import hashlib
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from fedlit.inputs import Inputs, call_with, mapped, tensors

_ROWS = 2
_CYCLE = 4099
"""Count of the fixed numbers that fill all tensors, repeated: prime, so that no two rows of a layer are alike."""
_STATISTICS = {"running_mean": 0.0, "running_var": 1.0}


def behaviour_of(net: nn.Module, sample: Inputs) -> str:
    """The fingerprint: eight hex digits; `sample` is one x of the data, of which only shape and type count."""
    was_training = {module: module.training for module in net.modules()}
    net.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return rounded_hash(answer(net, sample))
    finally:
        for module, mode in was_training.items():
            module.training = mode


def answer(net: nn.Module, sample: Inputs) -> Tensor:
    """The output for the fixed input, in float64; in the net's own dtype if its forward requires that."""
    dtype = next((value.dtype for value in net.parameters()), torch.float32)
    whole = not any(value.is_floating_point() for value in tensors(sample))
    try:
        return probed(net, sample, torch.float64, whole)
    except IndexError:  # the net uses its floating-point input as indices of a table
        whole = True
    except RuntimeError:  # torch's error for operands of different dtypes
        pass
    return probed(net, sample, dtype, whole)


def probed(net: nn.Module, sample: Inputs, dtype: torch.dtype, whole: bool) -> Tensor:
    """One pass with fixed weights and a fixed input."""
    torch.manual_seed(0)  # for nets that draw in evaluation too
    x = probe(sample, dtype, whole)
    output: Tensor = call_with(net, fixed_tensors(net, dtype), x)
    return output


def probe(sample: Inputs, dtype: torch.dtype, whole: bool) -> Inputs:
    """Input rows of the sample's shape, the same for each tensor of x."""
    made: Inputs = mapped(lambda one: probe_one(one, dtype, whole or not one.is_floating_point()), sample)
    return made


def probe_one(sample: Tensor, dtype: torch.dtype, whole: bool) -> Tensor:
    """Normal numbers, or the whole numbers 0 and 1, which every vocabulary has."""
    values = fixed_numbers((_ROWS, *sample.shape), offset=0)
    return (values > 0 if whole else values).to(dtype if sample.is_floating_point() else sample.dtype)


def fixed_tensors(net: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """Parameters of a realistic size, running statistics at their initial values, other buffers as they are."""
    tensors: dict[str, Tensor] = {}
    for position, (name, parameter) in enumerate(net.named_parameters(), start=1):
        inputs = max(1, parameter[0].numel()) if parameter.dim() > 1 else 1
        numbers = fixed_numbers(parameter.shape, offset=position * 97) / inputs**0.5
        tensors[name] = numbers.to(dtype) if parameter.is_floating_point() else parameter.detach()
    for name, buffer in net.named_buffers():
        begins = _STATISTICS.get(name.rpartition(".")[2])
        kept = buffer.detach().clone() if begins is None else torch.full_like(buffer, begins)
        tensors[name] = kept.to(dtype) if kept.is_floating_point() else kept
    return tensors


def fixed_numbers(shape: tuple[int, ...], offset: int) -> Tensor:
    """Normal numbers in float64 that depend only on shape and offset."""
    count = int(np.prod(shape, dtype=np.int64))
    return cycle().roll(-offset).repeat(count // _CYCLE + 1)[:count].reshape(shape)


@cache
def cycle() -> Tensor:
    """The numbers that are repeated."""
    return torch.from_numpy(np.random.Generator(np.random.Philox(key=1)).standard_normal(_CYCLE))


def rounded_hash(output: Tensor) -> str:
    """A hash of the largest number, and of all others divided by it and rounded."""
    values = output.double().cpu().numpy()
    finite = np.abs(values[np.isfinite(values)])
    largest = float(finite.max()) if finite.size else 0.0
    digits = 6 if output.dtype == torch.float64 else 3
    shares = np.round(values / (largest or 1.0), digits) + 0.0  # + 0.0: no -0
    text = f"{values.shape} {largest:.{digits - 1}e} {shares.tolist()}"
    return hashlib.sha256(text.encode()).hexdigest()[:8]
