"""The settings of a run as plain data: what decides its results, its name, and whether it may be resumed."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

from fedlit.data.base import FederatedDataModule
from fedlit.errors import ResumeError
from fedlit.run import RunFolder
from fedlit.server.optimizers import ServerOptimizer
from fedlit.server.sampling import Sampler
from fedlit.server.weights import Weighting
from fedlit.strict_yaml import load_yaml

_DESCRIBED = (Sampler, Weighting, ServerOptimizer)
_NOT_OURS = ("pytorch_lightning", "lightning_fabric", "torch", "abc", "builtins")
FREE_TRAINER_KEYS = frozenset(
    {
        *("rounds", "engine", "lanes", "workers", "compiled", "checkpoint_every", "divergence_factor", "rounds_to"),
        *("run", "resume", "overwrite", "logger", "max_time", "enable_progress_bar", "default_root_dir", "profiler"),
    }
)
"""Trainer arguments that do not change what a round computes (the engine's are checked against the checkpoint)."""


def describe(part: object) -> dict[str, Any]:
    """A part's class and its constructors' arguments, where they are kept under their own names and are plain."""
    own = [vars(ancestor) for ancestor in type(part).__mro__ if not ancestor.__module__.startswith(_NOT_OURS)]
    constructors = [held["__init__"] for held in own if "__init__" in held]
    arguments = [name for constructor in constructors for name in inspect.signature(constructor).parameters]
    kept = {name: getattr(part, name) for name in arguments if hasattr(part, name)}
    plain: dict[str, Any] = {
        name: value for name, value in kept.items() if isinstance(value, str | int | float | bool | None)
    }
    plain |= {name: describe(value) for name, value in kept.items() if isinstance(value, _DESCRIBED)}
    if isinstance(part, FederatedDataModule):
        plain["partition_hash"] = part.partition_hash  # stands for the options that a data set keeps elsewhere
    return {"class_path": type(part).__qualname__, "init_args": plain}


def deciding(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a config that decides the results: data, model, seed and most of the trainer."""
    given = config.get("trainer") or {}
    given = given.get("init_args", given)  # the form of `describe`, for runs that Python started
    trainer = {name: value for name, value in given.items() if name not in FREE_TRAINER_KEYS}
    return {**{name: config.get(name) for name in ("seed_everything", "model", "data")}, "trainer": trainer}


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """{'a': {'b': 1}} -> {'a.b': 1}."""
    if not isinstance(config, Mapping):
        return {prefix: config}
    flat: dict[str, Any] = {}
    for name, value in config.items():
        flat |= flatten(value, f"{prefix}.{name}" if prefix else str(name))
    return flat


def check_same_settings(folder: RunFolder, config: Mapping[str, Any]) -> None:
    """A resumed run must be the same run; only more rounds, loggers and the like may differ."""
    if not folder.config.exists():
        return
    then, now = (flatten(deciding(c)) for c in (read_config(folder.config), config))
    changed = [name for name in sorted(then | now) if then.get(name) != now.get(name)]
    if changed:
        shown = "; ".join(f"{name} was {then.get(name)}, is {now.get(name)}" for name in changed[:3])
        more = f" (and {len(changed) - 3} more)" if len(changed) > 3 else ""
        raise ResumeError(
            f"{folder.path} holds a run with other settings: {shown.replace('.init_args', '')}{more}. Resume it with "
            "the settings it began with (more rounds are fine), or start another run with --run DIR."
        )


def read_config(path: Path) -> dict[str, Any]:
    """config.yaml of a run folder."""
    try:
        config = load_yaml(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        why = " ".join(str(error).split())
        raise ResumeError(f"{path} is no YAML ({why}). Restore it, or start anew with --overwrite.") from error
    return config if isinstance(config, dict) else {}
