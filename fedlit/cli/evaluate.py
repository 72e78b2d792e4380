"""`fedlit evaluate`: the models of a run, measured once more, on its own data or on others."""

import argparse
from pathlib import Path

from rich.console import Console

from fedlit.config.parts import Parts, parts_of
from fedlit.data.base import FederatedDataModule
from fedlit.files import write_json
from fedlit.results.folder import chosen_by
from fedlit.results.runs import read_json
from fedlit.trainer.configuration_checks import check_adaptation
from fedlit.trainer.restore import Restored
from fedlit.trainer.summary import result_table
from fedlit.trainer.trainer import quiet_lightning


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `fedlit evaluate`."""
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all metrics there")
    parser.epilog = (
        "Options of fit that make other data follow: --data.seed 5, --data.root DIR, --data Digits. Those of "
        "fine-tuning replace the run's: --trainer.finetune_lr 0.01 --trainer.finetune_epochs 5."
    )
    parser.set_defaults(overrides=[])


def main(args: argparse.Namespace) -> int:
    """Measure and print; returns the exit code."""
    quiet_lightning()
    restored = Restored.of(args.run)
    parts = parts_of(restored, args.overrides)
    users = same_users(restored, parts.data)
    values = measured(restored, parts, users=users)
    console = Console()
    console.print(result_table({"rounds": restored.rounds, "final": values}))
    if not users:
        console.print("These are not the users of the run: only its global model was measured.", highlight=False)
    elif parts.options.finetune and not any(name.startswith("finetuned/") for name in values):
        console.print("The run kept no users' models: none was fine-tuned. z: --trainer.finetune_from global.")
    if args.json is not None:
        with chosen_by("--json FILE", args.json):
            write_json(args.json, values)
    return 0


def same_users(restored: Restored, data: FederatedDataModule) -> bool:
    """Whether the data's users are those of the run: the same clients with the same samples."""
    return bool(read_json(restored.folder.partition).get("hash") == data.partition_hash)


def measured(restored: Restored, parts: Parts, *, users: bool) -> dict[str, float]:
    """The metrics of z, and of the users' own and fine-tuned models where these are the run's users."""
    if users:
        check_adaptation(parts.client, parts.data, parts.options)
        evaluator = restored.round_evaluator(parts.client, parts.data, parts.options)
        return evaluator.evaluate(None, restored.model, restored.rounds)[0]
    plain = restored.evaluator(parts.client, parts.data)
    with plain.evaluating():
        return plain.global_model(restored.model)[0]
