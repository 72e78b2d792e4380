"""config.yaml of a run as plain data: reading, flattening, and the part of it that decides the results.

`trainer/description.py` describes a run from its objects.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

from fedlit.errors import ResumeError
from fedlit.results.strict_yaml import load_yaml

ATTRIBUTES = "class_attributes"
"""Key beside `class_path`: numbers and texts on a user's class, for error messages. Runs are compared by `code`."""
FREE_TRAINER_KEYS = frozenset(
    {
        *("rounds", "engine", "lanes", "workers", "compiled", "threads", "checkpoint_every"),
        *("divergence_factor", "rounds_to"),
        *("run", "resume", "overwrite", "logger", "max_time", "enable_progress_bar", "default_root_dir", "profiler"),
        *("accelerator", "devices", "num_nodes", "strategy", "rank_timeout", "states"),
    }
)
"""Trainer arguments that do not change what a round computes (the engine's are checked against the checkpoint)."""
LATER_KEYS: Mapping[str, frozenset[str]] = {
    "trainer": frozenset({"finetune_epochs", "finetune_part", "finetune_from", "newcomers_every"}),
    "model": frozenset({"train", "cache", "metrics", "module"}),
    "data": frozenset({"newcomers", "half", "every_position"}),
}
"""Arguments that runs of 0.2.0 lack. They are no settings while they are empty: such runs keep their folder and can be
resumed."""
FROZEN = "frozen"
"""Key of the fingerprint of a net's frozen weights."""
BROUGHT = "brought_weights"
"""Key of the fingerprint of a net's own weights. A resumed run has those of its checkpoint, and ignores it."""
FINGERPRINTS = {
    BROUGHT: "the net brings other weights",
    "code": "the code of the class is another",
    FROZEN: "the net's frozen weights are others",
    "structure": "the net is put together in another way",
    "behaviour": "with the same weights the net computes something else, as with another activation",
    "parameters": "the net has another size",
    "sha256": "the file holds something else",
}
"""Settings that are fingerprints, by the last part of their dotted name -> what a difference means."""


def result_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a config that decides the results: data, model, seed and most of the trainer."""
    parts = {name: without_later(name, config.get(name) or {}) for name in ("model", "data", "trainer")}
    arguments = parts["trainer"]
    arguments = arguments.get("init_args", arguments)  # runs from Python have the form of `describe`
    trainer = {name: value for name, value in arguments.items() if name not in FREE_TRAINER_KEYS}
    others = {"seed_everything": config.get("seed_everything"), "model": parts["model"], "data": parts["data"]}
    return {name: without_attributes(part) for name, part in {**others, "trainer": trainer}.items()}


def without_later(part: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A part of a config without the arguments that came later and are empty."""
    if isinstance(config.get("init_args"), Mapping):
        return {**config, "init_args": without_later(part, config["init_args"])}
    return {name: value for name, value in config.items() if value or name not in LATER_KEYS[part]}


def without_attributes(config: Any) -> Any:
    """A description without `class_attributes`, which not every version wrote: the fingerprint `code` covers them."""
    if not isinstance(config, Mapping):
        return config
    left_out = (ATTRIBUTES,) if "class_path" in config else ()
    return {name: without_attributes(value) for name, value in config.items() if name not in left_out}


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """{'a': {'b': 1}} -> {'a.b': 1}."""
    if not isinstance(config, Mapping):
        return {prefix: config}
    flat: dict[str, Any] = {}
    for name, value in config.items():
        flat |= flatten(value, f"{prefix}.{name}" if prefix else str(name))
    return flat


def canonical(value: Any) -> str:
    """A setting as text, the same for equal settings: NaN equals NaN, and the order of keys does not count."""
    return json.dumps(value, sort_keys=True, default=str)


def is_fingerprint(name: str) -> bool:
    """Whether a dotted name is that of a fingerprint, which shows that something differs but not what."""
    return name.rpartition(".")[2] in FINGERPRINTS and name.count(".") > 0


def meaning(name: str) -> str:
    """What a difference of this fingerprint means, in parentheses; an empty text for other settings."""
    return f" ({FINGERPRINTS[name.rpartition('.')[2]]})" if is_fingerprint(name) else ""


def read_config(path: Path) -> dict[str, Any]:
    """config.yaml of a run folder, or a ResumeError: it cannot be read, or is not what fedlit writes there."""
    try:
        config = load_yaml(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise _not_a_config(path, f"is not YAML ({' '.join(str(error).split())})") from error
    except UnicodeDecodeError as error:
        raise _not_a_config(path, f"is not text ({error})") from error
    except OSError as error:
        raise _not_a_config(path, f"cannot be read ({error.strerror})") from error
    if not isinstance(config, dict):
        raise _not_a_config(path, f"holds no keys, but {type(config).__name__}")
    for name in ("trainer", "model", "data"):
        if not isinstance(config.get(name, {}), dict):
            raise _not_a_config(
                path, f"has {str(config[name])[:80]!r} as {name}, which is not what fedlit writes there"
            )
    return config


def _not_a_config(path: Path, what: str) -> ResumeError:
    return ResumeError(f"{path} {what}. Restore it; else leave this run out, or start it anew with --overwrite.")
