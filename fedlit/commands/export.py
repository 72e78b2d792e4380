"""`fedlit export`: the server's model and the users' own of a run, as plain state dicts that torch alone can load."""

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor

from fedlit.checkpoint import find_checkpoint, read_checkpoint, read_tensors, write_tensors
from fedlit.errors import RunError
from fedlit.results import plain_settings
from fedlit.run import RunFolder, chosen_by
from fedlit.settings import read_config
from fedlit.states import ClientStates
from fedlit.step import Personal
from fedlit.users import UserModels

_EXAMPLE = """\
import torch
from fedlit import {net}
net = {net}(…)                                                   # as in config.yaml
net.load_state_dict(torch.load("{folder}/global.pt", weights_only=True))
users = torch.load("{folder}/personal.pt", weights_only=True)    # client -> state dict"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `fedlit export`."""
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the files go; RUN/export unless given")


def main(args: argparse.Namespace) -> int:
    """Write global.pt, best.pt and personal.pt; returns the exit code."""
    folder = RunFolder(args.run)
    found = find_checkpoint(folder) if folder.checkpoints.is_dir() else None
    if found is None:
        raise RunError(f"{args.run} holds no checkpoint. Give the folder of a run with a finished round.")
    content = read_checkpoint(found.path)
    assert content is not None, "find_checkpoint has read it"
    out = args.out or args.run / "export"
    console = Console()
    for name, (models, what) in exported(folder, content).items():
        with chosen_by("--out DIR", out):
            out.mkdir(parents=True, exist_ok=True)
            write_tensors(RunFolder(out), out / name, models)
        console.print(f"{out / name}: {what}", highlight=False, soft_wrap=True)
    console.print("\nTo load them:\n", highlight=False)
    console.print(_EXAMPLE.format(net=net_name(args.run), folder=out), highlight=False, markup=False, soft_wrap=True)
    return 0


def exported(folder: RunFolder, content: dict[str, Any]) -> dict[str, tuple[dict[Any, Any], str]]:
    """File -> its content and what it is."""
    loop = content["loops"]["fit_loop"]
    z = global_model(content)
    files: dict[str, tuple[dict[Any, Any], str]] = {"global.pt": (z, f"z after round {loop['rounds']}")}
    best = read_tensors(folder.best) if folder.best.exists() else None
    if best is not None:
        files["best.pt"] = (best["model"], f"z after round {best['round']}, the best validation accuracy")
    users = personal_models(z, loop)
    if users:
        personal = Personal(**loop.get("personal", {}))
        before = "" if personal.adaptation is None else ", before that step"
        files["personal.pt"] = (users, f"of {len(users)} clients that have trained: {personal.describe()}{before}")
    return files


def global_model(content: dict[str, Any]) -> dict[str, Tensor]:
    """z: the net's own names, without the client's prefix."""
    return {
        name.removeprefix("net."): value for name, value in content["state_dict"].items() if name.startswith("net.")
    }


def personal_models(z: dict[str, Tensor], loop: dict[str, Any]) -> dict[int, dict[str, Tensor]]:
    """Client -> its personal model, for every client that has trained; empty where none is kept."""
    states = ClientStates()
    states.load_state_dict(loop["clients"])
    own = frozenset(name for name in z if states.keeps(f"own.{name}"))
    keeps_local = all(states.keeps(f"local.{name}") for name in z)
    personal = Personal(**loop.get("personal", {})).model
    if personal == "local" and not keeps_local:
        return {}
    models = UserModels(lambda user: z, states, personal=personal, own=own, keeps_local=keeps_local)
    return {user: {name: value.clone() for name, value in models.personal(user).items()} for user in states.touched}


def net_name(folder: Path) -> str:
    """The class of the net, for the example; `Net` where config.yaml does not say."""
    config = RunFolder(folder).config
    return str(plain_settings(read_config(config)).get("model.net") or "Net") if config.is_file() else "Net"
