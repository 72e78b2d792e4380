"""The settings of a run as plain data: they decide its results, its name, and whether it may be resumed.

The command line gives its resolved config. A run from Python is described from its objects (`describe_run`): runs that
differ in anything that changes a number have different descriptions.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import (
    Checkpoint,
    DeviceStatsMonitor,
    EarlyStopping,
    LearningRateMonitor,
    ModelSummary,
    ProgressBar,
    Timer,
)
from torch import nn

from fedlit.client.base import Client
from fedlit.client.row_layout import as_bytes
from fedlit.data.base import FederatedDataModule
from fedlit.errors import ConfigError, ResumeError
from fedlit.recorded import Recorded, arguments_of
from fedlit.results.config_file import (
    ATTRIBUTES,
    BROUGHT,
    FROZEN,
    canonical,
    flatten,
    is_fingerprint,
    meaning,
    read_config,
    result_settings,
)
from fedlit.results.folder import RunFolder
from fedlit.server.base import ServerCallback
from fedlit.trainer.code_fingerprint import as_in_0_1
from fedlit.trainer.net_fingerprint import behaviour_of
from fedlit.trainer.plain_values import Description, describe, describe_net, path_of, plain

_WATCHING = (Checkpoint, DeviceStatsMonitor, EarlyStopping, LearningRateMonitor, ModelSummary, ProgressBar, Timer)
"""Lightning's callbacks that change no round. EarlyStopping and Timer end a run, as `rounds` and `max_time` do."""
_NOT_DESCRIBED = frozenset({"callbacks", "logger", "profiler", "run", "resume", "overwrite"})
"""Arguments that change no number; callbacks are described apart."""


def describe_run(
    trainer: Trainer, client: Client, data: FederatedDataModule, callbacks: Sequence[Callback]
) -> dict[str, Any]:
    """A run from Python in the form of a config: trainer, algorithm with its net, and data (set up)."""
    assert isinstance(trainer, Recorded)
    described = {"trainer": describe_trainer(trainer, callbacks)}
    described["model"] = describe_client(client, data, doubles=trainer.precision == "64-true")
    if arguments_of(trainer)["initial_weights"] == "net":
        described["model"]["init_args"]["net"][BROUGHT] = weights_of(client.net)
    described["data"] = describe(data, "data")
    described["data"]["init_args"]["partition_hash"] = data.partition_hash
    return described


def describe_run_as_in_0_1(
    trainer: Trainer, client: Client, data: FederatedDataModule, callbacks: Sequence[Callback]
) -> dict[str, Any]:
    """The description that fedlit 0.1 would give, so that its runs can be resumed too."""
    with as_in_0_1():
        return describe_run(trainer, client, data, callbacks)


def describe_trainer(trainer: Recorded, callbacks: Sequence[Callback]) -> Description:
    """The trainer's arguments, with those callbacks that may change a number, and without loggers."""
    arguments = {name: value for name, value in arguments_of(trainer).items() if name not in _NOT_DESCRIBED}
    described = {name: plain(value, f"trainer.{name}") for name, value in arguments.items()}
    deciding_ones = [callback for callback in callbacks if decides(callback)]
    if deciding_ones:
        described["callbacks"] = describe_callbacks(deciding_ones)
    return {"class_path": path_of(type(trainer)), "init_args": described}


def decides(callback: Callback) -> bool:
    """Whether a callback may change a number; a user's own may, unless its `decides` is False."""
    return callback.decides if isinstance(callback, ServerCallback) else not isinstance(callback, _WATCHING)


def describe_callbacks(callbacks: Sequence[Callback]) -> dict[str, Any]:
    """Callbacks by the name of their class, numbered if there are several of one class; their order counts too."""
    described: dict[str, Any] = {}
    for callback in callbacks:
        name = type(callback).__name__
        alike = sum(type(other).__name__ == name for other in callbacks[: len(described)])
        name = f"{name}_{alike + 1}" if alike else name
        described[name] = describe(callback, f"trainer.callbacks.{name}")
    return described | ({"order": list(described)} if len(described) > 1 else {})


def describe_client(client: Client, data: FederatedDataModule, *, doubles: bool) -> Description:
    """The algorithm and its arguments; the net by its layers and by what it computes."""
    described = describe(client, "model")
    if client.init_from is not None:
        described["init_args"]["init_from"] = client.init_from.known_by()
    dtype = next((value.dtype for value in client.net.parameters()), torch.float32)
    described["init_args"]["net"] = {
        **describe_net(client.net, "model.net"),
        "behaviour": behaviour_of(client.net, data.sample),
        "dtype": "float64" if doubles else str(dtype).removeprefix("torch."),
    }
    return described


def weights_of(net: nn.Module) -> str:
    """A hash of all tensors of a net: eight hex digits."""
    content = hashlib.sha256()
    for name, value in net.state_dict().items():
        content.update(name.encode())
        content.update(as_bytes(value.cpu()).numpy().data)
    return content.hexdigest()[:8]


def moved_attributes(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """A sentence about class attributes that differ between two configs; empty if none does."""
    old, new = flatten(then), flatten(now)
    names = [name for name in old if f".{ATTRIBUTES}." in name and name in new and old[name] != new[name]]
    moved = dict.fromkeys(f"{name.partition(f'.{ATTRIBUTES}.')[2]} was {old[name]}, is {new[name]}" for name in names)
    if not moved:
        return ""
    return (
        f" A number or text on a class is part of its code: {'; '.join([*moved][:3])}. Something that only counts "
        "belongs into a list or dict, which is not."
    )


def check_same_settings(
    folder: RunFolder, config: Mapping[str, Any], as_once: Callable[[], Mapping[str, Any]] | None = None
) -> None:
    """A resumed run must be the same run; only more rounds, loggers and the like may differ.

    Args:
        folder: of the run.
        config: its settings now.
        as_once: describes the run as fedlit 0.1 did, which may have begun it.
    """
    recorded = read_config(folder.config)
    changed = differing(recorded, config)
    if changed and as_once is not None and not differing(recorded, as_once()):
        return
    if changed:
        then, now = (flatten(result_settings(c)) for c in (recorded, config))
        changed.sort(key=is_fingerprint)
        shown = "; ".join(f"{name} was {then.get(name)}, is {now.get(name)}{meaning(name)}" for name in changed[:3])
        more = f" (and {len(changed) - 3} more)" if len(changed) > 3 else ""
        raise ResumeError(
            f"{folder.path} holds a run with other settings: {shown.replace('.init_args', '')}{more}."
            f"{moved_attributes(recorded, config)} Resume it with the settings it began with (more rounds are "
            "fine), or start another run with --run DIR (in Python: run=DIR). After an edit of a "
            "table's or sweep's file, remove this folder and use --retry-failed."
        )


def differing(recorded: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Dotted names of the settings that decide results and differ."""
    then, now = (flatten(result_settings(c)) for c in (recorded, config))
    names = [name for name in sorted(then | now) if not name.endswith(f".net.{BROUGHT}")]
    return [name for name in names if canonical(then.get(name)) != canonical(now.get(name))]


def check_ranks_agree(ranks: Sequence[tuple[Mapping[str, Any], Mapping[str, str], str]]) -> None:
    """ConfigError unless all processes of a run have the same settings, versions and data.

    Args:
        ranks: for each rank its config, the versions of its packages, and the hash of its partition.
    """
    first = _comparable(*ranks[0])
    for rank, settings in enumerate(ranks[1:], start=1):
        other = _comparable(*settings)
        names = [name for name in sorted(first | other) if canonical(first.get(name)) != canonical(other.get(name))]
        if names:
            shown = "; ".join(f"{name} is {first.get(name)} and {other.get(name)}{meaning(name)}" for name in names[:3])
            raise ConfigError(
                f"Ranks 0 and {rank} are not started alike: {shown.replace('.init_args', '')}. Start all ranks with "
                "the same command, packages and data."
            )


def _comparable(config: Mapping[str, Any], versions: Mapping[str, str], partition: str) -> dict[str, Any]:
    """Settings that must be equal on all ranks: not folders, and not weights, which all get from the first rank."""
    weights = (f".net.{BROUGHT}", f".net.{FROZEN}")
    flat = {name: value for name, value in flatten(config).items() if not name.endswith(weights)}
    same = {name: value for name, value in flat.items() if name.rpartition(".")[2] not in ("run", "default_root_dir")}
    return same | {f"the version of {name}": value for name, value in versions.items()} | {"the data": partition}
