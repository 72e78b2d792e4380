"""`fedlit evaluate`: the models of a run, measured once more, on its own data or on others."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from pytorch_lightning import seed_everything
from rich.console import Console

from fedlit.checkpoint import check_fits, find_checkpoint
from fedlit.client import Client
from fedlit.commandline.configs import resolve_configs
from fedlit.commandline.fit_cli import FitCLI, plain_refusals
from fedlit.commands.export import global_model
from fedlit.data.base import FederatedDataModule
from fedlit.errors import ConfigError, RunError, understood
from fedlit.evaluate import Evaluator
from fedlit.measuring import MeasureOptions, Measuring
from fedlit.params import load
from fedlit.results import read_json
from fedlit.rules import check_net
from fedlit.run import RunFolder, chosen_by
from fedlit.settings import read_config
from fedlit.states import INITIAL, ClientStates
from fedlit.step import Personal
from fedlit.summary import result_table
from fedlit.trainer import quiet_lightning
from fedlit.users import UserModels


class RunParts(FitCLI):
    """The command line of `fit`; the client and the data are made of it, and nothing else."""

    command = "evaluate"
    description = "The models of a run on its own data, or on those that the options of fit describe (--data.seed 5)."

    def instantiate_classes(self) -> None:
        """Without a trainer: a logger or a callback may write when it is made."""
        with plain_refusals():
            seed_everything(self.config.seed_everything, workers=False, verbose=False)
            parts = Namespace(  # type: ignore[no-untyped-call]  # jsonargparse's has no types
                model=self.config.model, data=self.config.data
            )
            made = self.parser.instantiate(parts)
            self.model, self.datamodule = made.model, made.data


@dataclass(frozen=True)
class Reloaded:
    """A run's client with its z, the data, and what its checkpoint holds."""

    client: Client
    data: FederatedDataModule
    loop: dict[str, Any]
    model: dict[str, Any]
    rows: Path
    """The checkpoint's folder, where rows on disk are."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `fedlit evaluate`."""
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all metrics there")
    parser.epilog = "Options of fit that make other data follow: --data.seed 5, --data.root DIR, --data Digits."
    parser.set_defaults(overrides=[])


def main(args: argparse.Namespace) -> int:
    """Measure and print; returns the exit code."""
    quiet_lightning()
    reloaded = reload(args.run, args.overrides)
    users = same_users(args.run, reloaded.data)
    values = measured(reloaded, users=users)
    console = Console()
    console.print(result_table({"rounds": reloaded.loop["rounds"], "final": values}))
    if not users:
        console.print("These are not the users of the run: only its global model was measured.", highlight=False)
    if args.json is not None:
        with chosen_by("--json FILE", args.json):
            args.json.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    return 0


def reload(folder: Path, overrides: Sequence[str] = ()) -> Reloaded:
    """The parts of a run of the command line, with its models.

    Args:
        folder: the run folder.
        overrides: options of `fit` that change the data.
    """
    run = RunFolder(folder)
    found = find_checkpoint(run) if run.checkpoints.is_dir() else None
    if found is None:
        raise RunError(f"{folder} holds no checkpoint. Give the folder of a run with a finished round.")
    if "class_path" in read_config(run.config).get("trainer", {}):
        raise ConfigError(
            f"{folder} was made from Python: its config.yaml describes the parts but cannot build them. Build them in "
            "Python, load the client with load_from_checkpoint(path, net=…), and call trainer.test(client, data)."
        )
    parts = RunParts(resolve_configs(["--config", str(run.config), *overrides]))
    client, data = parts.model, parts.datamodule
    assert isinstance(client, Client)
    assert isinstance(data, FederatedDataModule)
    data.prepare_data()
    data.setup("test")
    data.cast(next(client.net.parameters()).dtype)
    check_net(client, data)
    client.prepare()
    check_fits(found, client, data)
    z = global_model(found.content)
    load(client.net, z)
    return Reloaded(client, data, found.content["loops"]["fit_loop"], z, found.path.parent)


def same_users(folder: Path, data: FederatedDataModule) -> bool:
    """Whether the data's users are those of the run: the same clients with the same samples."""
    return bool(read_json(RunFolder(folder).partition).get("hash") == data.partition_hash)


def measured(run: Reloaded, *, users: bool) -> dict[str, float]:
    """The metrics of z, and of the users' own models where these are the run's users.

    Args:
        run: its parts.
        users: whether the data's users are those of the run.
    """
    if not users:
        evaluator = Evaluator(run.client, run.data)
        with evaluator.evaluating():
            return evaluator.global_model(run.model)[0]
    states = ClientStates()
    with understood(run.rows):
        states.load_state_dict(run.loop["clients"], run.rows)
        personal = Personal(**run.loop.get("personal", {})).model
    own = frozenset(name for name in run.model if states.keeps(f"own.{name}"))
    keeps_local = all(states.keeps(f"local.{name}") for name in run.model)
    models = UserModels(
        lambda user: run.model,
        states,
        personal=personal,
        own=own,
        untouched=run.loop["initial"] if run.client.state_spec().get(personal) is INITIAL else None,
        keeps_local=keeps_local,
    )
    return Measuring(run.client, run.data, models, MeasureOptions()).evaluate(None, run.model)[0]
