"""`fedlit workspace`: makes a W&B workspace for federated runs, or prints what it would be."""

import argparse
import json
import os
from pathlib import Path

from fedlit.client.tasks import TASKS
from fedlit.errors import ConfigError, nearest, require
from fedlit.files import write_text
from fedlit.results.folder import chosen_by
from fedlit.trainer.wandb.failures import wandb_failures
from fedlit.trainer.wandb.modes import has_credentials
from fedlit.trainer.wandb.workspace import specification, workspace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `fedlit workspace`."""
    entity, project = os.environ.get("WANDB_ENTITY", ""), os.environ.get("WANDB_PROJECT", "fedlit")
    parser.add_argument("--entity", default=entity, help="W&B user or team that owns the project; WANDB_ENTITY")
    parser.add_argument("--project", default=project, help=f"W&B project of the runs; WANDB_PROJECT ({project})")
    parser.add_argument("--name", default="Federated users", help="name of the new view (Federated users)")
    parser.add_argument(
        "--task",
        default="classification",
        metavar="TASK",
        help=f"task of the runs, whose measures are drawn: {', '.join(TASKS)} (classification)",
    )
    parser.add_argument("--print", action="store_true", help="print its specification as JSON; needs no account")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write its specification there; needs no account")


def main(args: argparse.Namespace) -> int:
    """Make it, or show it; returns the exit code."""
    require(args.task in TASKS, f"--task is '{args.task}'. {nearest(args.task, TASKS)}Known: {', '.join(TASKS)}.")
    built = workspace(args.entity, args.project, args.name, TASKS[args.task].measures)
    text = json.dumps(specification(built), indent=2, ensure_ascii=False) + "\n"
    if args.json is not None:
        with chosen_by("--json FILE", args.json):
            write_text(args.json, text)
    if args.print:
        print(text, end="")
    if args.json is not None or args.print:
        return 0
    require(bool(args.entity), "Whose workspace? Give --entity NAME, your W&B user or team; --print needs none.")
    if not has_credentials():
        raise ConfigError("A workspace is made in your W&B account: run 'wandb login' first. --print needs no account.")
    try:
        print(built.save().url)
    except wandb_failures() as error:
        why = " ".join(str(error).split())
        raise ConfigError(
            f"W&B did not take the workspace for {args.entity}/{args.project} ({why}). The project exists once a run "
            "was sent to it; check both names, and that you may write there."
        ) from error
    return 0
