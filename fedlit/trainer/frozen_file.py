"""frozen.pt: the frozen tensors of a net, once in a run folder. Every checkpoint names it, with its fingerprint."""

import hashlib
from pathlib import Path

import torch
from torch import Tensor, nn

from fedlit.client.net_parts import frozen_state
from fedlit.client.row_layout import archive, as_bytes
from fedlit.errors import ResumeError, RunError
from fedlit.files import write_bytes
from fedlit.params import Params
from fedlit.results.folder import RunFolder

Named = dict[str, str]
"""What a checkpoint has under `frozen`: the file's name and the fingerprint of its tensors; empty if all is trained."""


def named(net: nn.Module) -> Named:
    """What checkpoints of a run with this net have under `frozen`."""
    tensors = frozen_state(net)
    return {"file": "frozen.pt", "sha256": fingerprint(tensors)} if tensors else {}


def write(folder: RunFolder, net: nn.Module) -> Named:
    """Write the file, unless the net has no frozen tensors; returns what checkpoints name."""
    tensors = frozen_state(net)
    if tensors:
        write_bytes(folder.frozen, archive(tensors))
    return named(net)


def fingerprint(tensors: Params) -> str:
    """A hash of names and numbers; in one floating-point type, because a run's precision changes that of the net."""
    content = hashlib.sha256()
    for name, value in tensors.items():
        content.update(name.encode())
        content.update(as_bytes(in_float32(value.detach().cpu())).numpy().data)
    return content.hexdigest()[:16]


def in_float32(value: Tensor) -> Tensor:
    """A floating-point tensor in float32, because an earlier run may have left it in another precision."""
    return value.float() if value.is_floating_point() else value


def read(folder: RunFolder, recorded: Named) -> Params:
    """The frozen tensors that a checkpoint names; none if it names none. RunError if they are lost."""
    if not recorded:
        return {}
    file = folder.frozen
    try:
        tensors: Params = torch.load(file, map_location="cpu", weights_only=True)
        is_right = fingerprint(tensors) == recorded["sha256"]
    except Exception as error:  # on damaged bytes torch fails in more ways than it documents
        raise RunError(f"{file}, the frozen part of the net, cannot be read ({error}). Restore it.") from error
    if not is_right:
        raise RunError(f"{file} does not hold the frozen part of the net that the run began with. Restore it.")
    return tensors


def check_same(net: nn.Module, then: Named, where: Path) -> None:
    """ResumeError if the frozen part of the net is not the one that the checkpoint in a file names."""
    now = named(net)
    if then != now:
        raise ResumeError(
            f"{where} is of a run whose net has another frozen part (fingerprint {then.get('sha256', 'none')}, here "
            f"{now.get('sha256', 'none')}). Give the net that the run began with: its frozen weights are in "
            f"{where.with_name('frozen.pt')}, which model.init_from can read. Or start another run."
        )
