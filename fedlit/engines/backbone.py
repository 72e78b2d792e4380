"""A frozen backbone is computed once: its outputs are kept for every sample, and the rest of the net is fed with them.

The backbone must be the first part of the net: it is called once, with x alone, and nothing else reads x. It must be
frozen and give a sample the same output at any time, alone or beside others. All this is tried before a run.

While the cache is installed, the data give the backbone's outputs as x, and the backbone passes its input on.
"""

import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedlit.client.base import Client
from fedlit.client.net_parts import begin_training, trained
from fedlit.data.base import FederatedDataModule
from fedlit.engines.base import Store
from fedlit.errors import ConfigError, nearest, require
from fedlit.inputs import in_dtype

log = logging.getLogger("fedlit")

IN_MEMORY = 2e9
"""Bytes up to which outputs are kept in memory; more are kept in a file that is mapped into it."""
CHUNK = 256
"""Rows of a pass."""
_OUTPUTS, _NUMBERS = "backbone", "backbone rows"
"""Names in a store: the outputs, and the row numbers of the data to which they belong, in ascending order."""
Labels = Callable[[Store, Tensor], Tensor]
"""y of row numbers, without x."""
_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_TRIED = 4
"""Rows on which a backbone is tried."""


def rows_of_outputs(labels: Labels, store: Store, index: Tensor) -> tuple[Tensor, Tensor]:
    """(output of the backbone, y) of these rows of the data."""
    place = torch.searchsorted(store[_NUMBERS], index)
    return store[_OUTPUTS].index_select(0, place), labels(store, index)


def check_backbone(client: Client, data: FederatedDataModule) -> None:
    """Refuse a cache of a module whose outputs cannot be kept; each reason is one sentence."""
    if client.cache is None:
        return
    backbone, what = part_of(client), f"model.cache is '{client.cache}', but that module"
    names = [name for name in trained(client.net) if name.startswith(f"{client.cache}.")]
    require(not names, f"{what} is not frozen: '{next(iter(names), '')}' is trained. Leave it out of model.train.")
    require(
        data.vary is None,
        f"model.cache is '{client.cache}', but the samples of {type(data).__name__} are augmented: a sample looks "
        "different each time. Turn the augmentation off, or leave model.cache out.",
    )
    require(not data.is_fresh, f"model.cache is '{client.cache}', but every round has new samples. Leave it out.")
    dropping = [name for name, one in backbone.named_modules() if isinstance(one, _DROPOUT) and one.p > 0]
    require(
        not dropping, f"{what} drops out (in '{next(iter(dropping), '')}'). Set its p to 0, or leave the cache out."
    )
    tried(client, data, backbone, what)


def tried(client: Client, data: FederatedDataModule, backbone: nn.Module, what: str) -> None:
    """Try the backbone on some rows, in training mode."""
    x, _ = data.rows(data.store, data.everyone.train.joined[:_TRIED])
    require(isinstance(x, Tensor), f"{what} would see one of several inputs. A cache needs data whose x is one tensor.")
    assert isinstance(x, Tensor)
    x = x.to(next(client.net.parameters()).dtype) if x.is_floating_point() else x
    training = client.net.training
    try:
        begin_training(client.net)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            output = output_of(client, backbone, x, what)
            check_repeatable(backbone, x, output, what)
            check_rest(client, x, output, backbone, what)
    finally:
        client.net.train(training)


def output_of(client: Client, backbone: nn.Module, x: Tensor, what: str) -> Tensor:
    """The backbone's output within the net; refuse one that sees something else than x."""
    calls: list[tuple[Any, ...]] = []
    hook = backbone.register_forward_hook(lambda _, args, output: calls.append((*args, output)))
    try:
        client(x)
    finally:
        hook.remove()
    call = calls[0] if len(calls) == 1 else ()
    require(
        len(call) == 2 and isinstance(call[0], Tensor) and torch.equal(call[0], x),
        f"{what} does not see x itself, once and alone. Choose the first module of the net.",
    )
    output = call[1]
    is_kept = isinstance(output, Tensor) and len(output) == len(x)
    require(is_kept, f"{what} does not give one tensor with a row for each sample.")
    assert isinstance(output, Tensor)
    return output


def check_repeatable(backbone: nn.Module, x: Tensor, output: Tensor, what: str) -> None:
    """Refuse a backbone that gives a sample another output at another time, or beside other samples."""
    before = torch.get_rng_state()
    again, fewer = backbone(x), backbone(x[:2])
    require(torch.equal(before, torch.get_rng_state()), f"{what} draws random numbers. Leave model.cache out.")
    near = partial(torch.allclose, rtol=1e-3, atol=1e-5)
    require(
        near(again, output) and near(fewer, output[:2]),
        f"{what} normalises by the batch: a sample's output depends on the samples beside it. Freeze its statistics "
        "(BatchNorm with running statistics does), or leave model.cache out.",
    )


def check_rest(client: Client, x: Tensor, output: Tensor, backbone: nn.Module, what: str) -> None:
    """Refuse a net whose other parts read x too."""
    client.net.eval()
    whole = client(x)
    try:
        with passing_on(backbone):
            is_same = torch.allclose(client(output), whole, rtol=1e-3, atol=1e-5)
    except (RuntimeError, IndexError):
        is_same = False
    require(is_same, f"{what} is not all that reads x: the rest of the net does, too. Leave model.cache out.")


def part_of(client: Client) -> nn.Module:
    """The module that `model.cache` names."""
    modules: dict[str, nn.Module] = dict(client.net.named_modules())
    if not client.cache or client.cache not in modules:
        raise ConfigError(
            f"model.cache is '{client.cache}', but model.net ({type(client.net).__name__}) has no such module. "
            f"{nearest(client.cache or '', modules)}Give the name of its first, frozen module, such as "
            f"{next((name for name in modules if name), 'backbone')}."
        )
    return modules[client.cache]


@contextmanager
def passing_on(backbone: nn.Module) -> Iterator[None]:
    """Inside the block, the module returns its input."""
    vars(backbone)["forward"] = lambda x: x
    try:
        yield
    finally:
        del vars(backbone)["forward"]


@contextmanager
def installed(client: Client, data: FederatedDataModule, folder: Path | None) -> Iterator[None]:
    """Inside the block, the data give the outputs of the backbone that `model.cache` names; nothing without one.

    Args:
        client: its net is where it computes.
        data: set up, in the numbers of the run.
        folder: where a mapped file may be; a folder for temporary files if there is none.
    """
    if client.cache is None:
        yield
        return
    populations = [data] if data.newcomer_data is None else [data, data.newcomer_data]
    numbers = used_rows(populations)
    kept = {_OUTPUTS: computed(client, data, numbers, folder), _NUMBERS: numbers}
    for population in populations:
        population.store.update(kept)
        vars(population)["rows"] = vars(population)["plain_rows"] = partial(rows_of_outputs, data.labels)
    try:
        with passing_on(part_of(client)):
            yield
    finally:
        for population in populations:
            for name in kept:
                population.store.pop(name, None)
            del vars(population)["rows"], vars(population)["plain_rows"]


def used_rows(populations: list[FederatedDataModule]) -> Tensor:
    """Every row number that is trained or measured on, and the first one, once."""
    parts = [torch.zeros(1, dtype=torch.int64)]
    for data in populations:
        everyone = data.everyone
        parts += [pieces.joined for pieces in (everyone.train, everyone.val, everyone.test, everyone.adapt)]
        parts += [data.global_test, data.global_val]
    numbers: Tensor = torch.unique(torch.cat(parts))
    return numbers


def computed(client: Client, data: FederatedDataModule, numbers: Tensor, folder: Path | None) -> Tensor:
    """(rows, …) outputs of the backbone for these rows of the data."""
    backbone, training = part_of(client), client.net.training
    weight = next(client.net.parameters())

    def outputs(index: Tensor) -> Tensor:
        x, _ = data.plain_rows(data.store, index)
        output: Tensor = backbone(in_dtype(x.to(weight.device), weight.dtype))
        return output.cpu()

    client.net.eval()
    try:
        with torch.no_grad():
            first = outputs(numbers[:1])
            kept = room(client.cache or "", (len(numbers), *first.shape[1:]), first.dtype, folder)
            for part in torch.split(torch.arange(len(numbers)), CHUNK):
                kept[part] = outputs(numbers[part])
    finally:
        client.net.train(training)
    return kept


def room(cache: str, shape: tuple[int, ...], dtype: torch.dtype, folder: Path | None) -> Tensor:
    """An empty tensor, in memory or in a file that ends with the process; its size is logged before it is filled."""
    needed = torch.Size(shape).numel() * dtype.itemsize
    line = f"cache: the outputs of '{cache}' for {shape[0]:,} samples, {needed / 1e6:,.1f} MB"
    if needed <= IN_MEMORY:
        log.info(f"{line} in memory")
        return torch.empty(shape, dtype=dtype)
    place = Path(tempfile.gettempdir()) if folder is None else folder
    free = shutil.disk_usage(place).free
    require(
        needed < free,
        f"model.cache is '{cache}', whose outputs for {shape[0]:,} samples need {needed / 1e9:.1f} GB, but {place} has "
        f"{free / 1e9:.1f} GB left. Free some space, cache a module with smaller outputs, or leave model.cache out.",
    )
    log.info(f"{line} in a file in {place}")
    with tempfile.NamedTemporaryFile(dir=place, prefix="cache-") as file:  # mapped memory stays when its name is gone
        return torch.from_file(file.name, shared=True, size=torch.Size(shape).numel(), dtype=dtype).view(shape)
