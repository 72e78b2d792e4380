"""A GPU that is not there: torch says what one would, and the values are computed on the processor.

A tensor on `cuda` is *pretended*. It has a fake tensor of torch's FakeTensorMode, which is on `cuda` and raises where
an operation mixes devices, and a value on the host, on which the same operation runs. So whole runs go through, their
numbers can be compared with a processor's, and every place in which the host waits for the device is seen:

- `.item()`, `float(x)`, `bool(x)`, `.cpu()`, a copy into a tensor of the host;
- operations whose result's shape depends on values (boolean masks, nonzero): what FakeTensorMode refuses;
- tensors that are made on the host and sent with a copy for which the host waits (torch.tensor(1.0, device="cuda")).

`.numpy()` of a tensor of the device raises, as it does on a real one. For autograd a pretended tensor is on `meta`:
a torch that is built without CUDA has no streams of it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from pytorch_lightning.accelerators import CUDAAccelerator
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

aten = torch.ops.aten
CUDA, HOST = torch.device("cuda", 0), torch.device("cpu")
_READS = (aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default)


class Pretended(Tensor):
    """A tensor on the pretended GPU."""

    fake: Tensor
    """What torch thinks of it."""
    value: Tensor
    """Its numbers."""

    @staticmethod
    def __new__(cls, fake: Tensor, value: Tensor) -> "Pretended":
        made: Pretended = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            fake.shape,
            strides=fake.stride(),
            storage_offset=fake.storage_offset(),
            dtype=fake.dtype,
            device="meta",
        )
        made.fake, made.value = fake, value
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return CUDA

    def new_tensor(self, data: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:  # type: ignore[override]
        """Made on the host and sent; torch's own would make a tensor without values, for `meta`."""
        return torch.tensor(data, dtype=dtype or self.dtype, device=CUDA)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Pretended({tuple(self.shape)})"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} outside of the pretended GPU")


class Fakes(FakeTensorMode):
    """torch's opinion of an operation."""

    avoid_device_init = True  # torch would ask torch.cuda.is_available(), which pretends here


class PretendedGpu(TorchDispatchMode):
    """While it is entered, `cuda` can be used."""

    _mode_key = torch._C._TorchDispatchModeKey.FAKE  # type: ignore[attr-defined]  # so that torch does not start CUDA

    def __init__(self) -> None:
        super().__init__()
        self.torch = Fakes()
        self.waits: list[str] = []
        """The operations in which the host waited for the device."""
        self.operations = 0
        """Operations on the device."""

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves, form = tree_flatten((args, kwargs or {}))
        there = any(isinstance(leaf, Pretended) for leaf in leaves)
        asked = next((leaf for leaf in leaves if isinstance(leaf, torch.device)), None)
        if not there and (asked is None or asked == HOST):
            return func(*args, **(kwargs or {}))
        self.operations += 1
        values = _call(func, [_value(leaf) for leaf in leaves], form)
        comes_home = func in _READS or (func is aten._to_copy.default and asked == HOST)
        if comes_home or (func is aten.copy_.default and not isinstance(args[0], Pretended)):
            self.waits.append(str(func))
            return values
        sent = not there and func is aten._to_copy.default and not (kwargs or {}).get("non_blocking")
        if sent or (func is aten.where.self and not isinstance(args[0], Pretended)):  # a host's condition is sent too
            self.waits.append(f"{func} to the device")
        return self._paired(func, leaves, form, values)

    def _paired(self, func: Any, leaves: list[Any], form: Any, values: Any) -> Any:
        """Pretended results; those of an operation in place are what it was given."""
        with self.torch:
            try:
                if masks(func, leaves):
                    raise DynamicOutputShapeException(func)  # as torch does, where it is built with CUDA
                fakes = _call(func, [self._fake(leaf) for leaf in leaves], form)
            except (DataDependentOutputException, DynamicOutputShapeException):
                self.waits.append(str(func))
                fakes = tree_map(self._like, values)
        given = {id(leaf.fake): leaf for leaf in leaves if isinstance(leaf, Pretended)}
        flat_fakes, out = tree_flatten(fakes)
        flat_values, _ = tree_flatten(values)
        paired = [
            given.get(id(fake)) if id(fake) in given else Pretended(fake, value) if isinstance(fake, Tensor) else value
            for fake, value in zip(flat_fakes, flat_values, strict=True)
        ]
        return tree_unflatten(paired, out)

    def _fake(self, leaf: Any) -> Any:
        if isinstance(leaf, Pretended):
            return leaf.fake
        if isinstance(leaf, Tensor):
            return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype)
        return CUDA if isinstance(leaf, torch.device) and leaf != HOST else leaf

    def _like(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=CUDA)


def masks(func: Any, leaves: list[Any]) -> bool:
    """Whether the operation indexes by a mask: the device counts it, and the host must know."""
    indexes = func in (aten.index.Tensor, aten.index_put.default)
    return indexes and any(isinstance(leaf, Tensor) and leaf.dtype == torch.bool for leaf in leaves[1:])


def _call(func: Any, leaves: list[Any], form: Any) -> Any:
    args, kwargs = tree_unflatten(leaves, form)
    return func(*args, **kwargs)


def _value(leaf: Any) -> Any:
    if isinstance(leaf, Pretended):
        return leaf.value
    return HOST if isinstance(leaf, torch.device) else leaf


@contextmanager
def pretended_gpu(monkeypatch: pytest.MonkeyPatch, count: int = 1) -> Iterator[PretendedGpu]:
    """A machine with so many GPUs, as torch and Lightning see it."""
    machine_with(monkeypatch, count)
    for name in ("setup_device", "setup", "teardown"):
        monkeypatch.setattr(CUDAAccelerator, name, lambda *_: None)
    monkeypatch.setattr(nn.Module, "_apply", moved)
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(…, device="cuda") is made on the host and sent
    try:
        with PretendedGpu() as gpu:
            yield gpu
    finally:
        torch._C._set_only_lift_cpu_tensors(False)


def machine_with(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    """So many GPUs can be counted; none of them can be used."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    for package in ("lightning_fabric.utilities.device_parser", "pytorch_lightning.accelerators.cuda"):
        monkeypatch.setattr(f"{package}.num_cuda_devices", lambda: gpus, raising=False)
    monkeypatch.setattr("lightning_fabric.accelerators.cuda.num_cuda_devices", lambda: gpus)
    monkeypatch.setattr(CUDAAccelerator, "is_available", staticmethod(lambda: gpus > 0))


def moved(module: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """nn.Module.to and the like; torch's own cannot put an ordinary tensor in the place of a pretended one."""
    for child in module.children() if recurse else ():
        child._apply(fn)
    with torch.no_grad():
        for name, value in module._parameters.items():
            if value is not None:
                module._parameters[name] = nn.Parameter(fn(value), value.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = fn(buffer)
    return module
