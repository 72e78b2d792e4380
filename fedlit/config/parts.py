"""The client, the data and the fine-tuning of a run, built anew from its config.yaml.

The command line wrote it, or Python did. One from Python describes a run (`description.describe_run`). If all its
classes can be imported, and a config can hold their arguments, the run can be built from it too; the result is
described again, and must be the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types
from jsonargparse import Namespace
from pytorch_lightning import seed_everything

from fedlit.client.base import Client
from fedlit.config.files import resolve_configs
from fedlit.config.fit_cli import FitCLI, plain_refusals
from fedlit.data.base import FederatedDataModule
from fedlit.errors import ConfigError
from fedlit.evaluation.round_evaluator import EvaluationOptions
from fedlit.results.config_file import FROZEN, canonical, flatten, read_config
from fedlit.trainer.configuration_checks import evaluation_options
from fedlit.trainer.description import describe_client
from fedlit.trainer.restore import Restored

INSTEAD = (
    "Run the script once more with FederatedTrainer(…, resume=True) and the rounds that it had: nothing is trained "
    "again, and trainer.summary, trainer.test() and trainer.personal_model(3) have what the run found."
)


FINETUNING = ("lr", "on", "epochs", "part", "from")
"""Options of the trainer that follow `finetune_`."""


@dataclass(frozen=True)
class Parts:
    """What of a run can be built anew."""

    client: Client
    data: FederatedDataModule
    options: EvaluationOptions
    """The fine-tuning, with the seed of its draws."""


class RunParts(FitCLI):
    """The command line of `fit`, which builds only the client and the data."""

    command = "evaluate"
    description = "The models of a run on its own data, or on those that the options of fit describe (--data.seed 5)."

    def instantiate_classes(self) -> None:
        """Build no trainer: a logger or a callback may write as soon as it exists."""
        with plain_refusals():
            seed_everything(self.config.seed_everything, workers=False, verbose=False)
            parts = Namespace(  # type: ignore[no-untyped-call]  # jsonargparse's has no types
                model=self.config.model, data=self.config.data
            )
            made = self.parser.instantiate(parts)
            self.model, self.datamodule = made.model, made.data

    def parts(self) -> Parts:
        """The parts, once they are built."""
        asked = {name: self.config.trainer[f"finetune_{name}"] for name in FINETUNING}
        asked["start"] = asked.pop("from")
        options = evaluation_options((), self.config.seed_everything, newcomers_every=None, eval_every=1, **asked)
        assert isinstance(self.model, Client)
        assert isinstance(self.datamodule, FederatedDataModule)
        return Parts(self.model, self.datamodule, options)


def parts_of(restored: Restored, overrides: Sequence[str] = ()) -> Parts:
    """The client with the run's global model, and the data, which are set up.

    Args:
        restored: the run.
        overrides: options of `fit` that change the data or the fine-tuning.
    """
    path = restored.folder.config
    described = read_config(path)
    if "class_path" not in described.get("trainer", {}):
        parts = built(path, overrides)
        restored.load_into(parts.client, parts.data)
        return parts
    parts = built_from_description(path, described, overrides)
    restored.load_into(parts.client, parts.data)
    changes_data = any(not option.startswith("--trainer.") for option in overrides if option.startswith("--"))
    check_built(path, described, parts.client, parts.data, is_user_code=not changes_data)
    return parts


def built(config: Path, overrides: Sequence[str]) -> Parts:
    """Build the parts from a config and options of `fit`."""
    return RunParts(resolve_configs(["--config", str(config), *overrides])).parts()


def built_from_description(path: Path, described: Mapping[str, Any], overrides: Sequence[str]) -> Parts:
    """Build the parts of a run from Python, or say why that is impossible and what to do."""
    for name, kind in classes_of({part: described[part] for part in ("model", "data")}):
        if kind.startswith("__main__.") or "<locals>" in kind:
            raise ConfigError(
                f"{path.parent} was made from Python: its {name} is {kind}, a class of the script itself, which no "
                f"command can import. {INSTEAD} Or define the class in a module of its own, and train anew."
            )
    with TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(yaml.safe_dump(buildable(described)), encoding="utf-8")
        try:
            return built(config, overrides)
        except ConfigError as error:
            why = str(error).replace(str(config), str(path))
            raise ConfigError(
                f"{path.parent} was made from Python, and its parts cannot be built from config.yaml: {why} {INSTEAD}"
            ) from error


def classes_of(described: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, str]]:
    """Dotted name and class of every part in a description."""
    for name, value in described.items():
        inner = where if name == "init_args" else f"{where}.{name}".lstrip(".")
        if name == "class_path":
            yield where, value
        elif isinstance(value, Mapping):
            yield from classes_of(value, inner)


def buildable(described: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the client, the data and the fine-tuning, without fingerprints and hashes."""
    trainer = described["trainer"]["init_args"]
    finetuning = {key: trainer[key] for key in (f"finetune_{name}" for name in FINETUNING) if key in trainer}
    data = dict(described["data"])
    data["init_args"] = {name: value for name, value in data["init_args"].items() if name != "partition_hash"}
    return {
        "seed_everything": trainer["seed"],
        "trainer": finetuning,
        "model": without_fingerprints(described["model"]),
        "data": without_fingerprints(data),
    }


def without_fingerprints(value: Any) -> Any:
    """Keep only the class and the arguments of each part."""
    if not isinstance(value, Mapping):
        return value
    kept = {
        name: one for name, one in value.items() if "class_path" not in value or name in ("class_path", "init_args")
    }
    return {name: without_fingerprints(one) for name, one in kept.items()}


def check_built(
    path: Path, described: Mapping[str, Any], client: Client, data: FederatedDataModule, *, is_user_code: bool
) -> None:
    """Refuse parts that differ from those of the run, such as a net with other arguments or data that changed.

    Frozen weights are those of the run's folder.
    """
    doubles = described["trainer"]["init_args"]["precision"] == "64-true"
    then, now = (flatten(one) for one in (described["model"], describe_client(client, data, doubles=doubles)))
    names = [name for name in sorted(now) if not name.endswith(f".net.{FROZEN}")]
    other = [name for name in names if canonical(then.get(name)) != canonical(now[name])]
    if is_user_code and described["data"]["init_args"]["partition_hash"] != data.partition_hash:
        other.append("data.partition_hash")
    if other:
        raise ConfigError(
            f"{path.parent} was made from Python, and what its config.yaml builds is not what was trained (it differs "
            f"in {', '.join(other[:3]).replace('init_args.', '')}). {INSTEAD}"
        )
