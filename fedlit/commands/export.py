"""`fedlit export`: the server's model and the users' own of a run, as plain state dicts that torch alone can load."""

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor

from fedlit.checkpoint import find_checkpoint, read_tensors, write_tensors
from fedlit.errors import RunError, understood
from fedlit.run import RunFolder, chosen_by
from fedlit.settings import read_config
from fedlit.states import ClientStates
from fedlit.step import Personal
from fedlit.users import UserModels

log = logging.getLogger("fedlit")


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
    out = args.out or args.run / "export"
    console = Console()
    with understood(found.path):
        files = exported(folder, found.content)
    for name, (models, what) in files.items():
        with chosen_by("--out DIR", out):
            out.mkdir(parents=True, exist_ok=True)
            write_tensors(RunFolder(out), out / name, models)
        console.print(f"{out / name}: {what}", highlight=False, soft_wrap=True)
    console.print("\nTo load them:\n", highlight=False)
    for line in example(read_config(folder.config) if folder.config.is_file() else {}, out, list(files)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return 0


def exported(folder: RunFolder, content: dict[str, Any]) -> dict[str, tuple[dict[Any, Any], str]]:
    """File -> its content and what it is."""
    loop = content["loops"]["fit_loop"]
    z = global_model(content)
    files: dict[str, tuple[dict[Any, Any], str]] = {"global.pt": (z, f"z after round {loop['rounds']}")}
    best = read_tensors(folder.best) if folder.best.exists() else None
    if folder.best.exists() and (best is None or not isinstance(best.get("model"), dict) or "round" not in best):
        log.warning(f"{folder.best} is damaged, or is not fedlit's: best.pt is left out.")
    elif best is not None:
        files["best.pt"] = (best["model"], f"z after round {best['round']}, the best on validation")
    users = personal_models(z, loop, folder.checkpoints)
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


def personal_models(z: dict[str, Tensor], loop: dict[str, Any], rows: Path) -> dict[int, dict[str, Tensor]]:
    """Client -> its personal model, for every client that has trained; empty where none is kept.

    Args:
        z: the server's model.
        loop: what the checkpoint holds of the run.
        rows: the checkpoint's folder, where rows on disk are.
    """
    states = ClientStates()
    states.load_state_dict(loop["clients"], rows)
    own = frozenset(name for name in z if states.keeps(f"own.{name}"))
    keeps_local = all(states.keeps(f"local.{name}") for name in z)
    personal = Personal(**loop.get("personal", {})).model
    if personal == "local" and not keeps_local:
        return {}
    models = UserModels(lambda user: z, states, personal=personal, own=own, keeps_local=keeps_local)
    return {user: {name: value.clone() for name, value in models.personal(user).items()} for user in states.touched}


def example(config: dict[str, Any], out: Path, files: Sequence[str]) -> list[str]:
    """Lines of Python that load the files; they run as they are where the config says how the net was built."""
    net = config.get("model", {}).get("init_args", {}).get("net", {})
    module, _, name = str(net.get("class_path", "Net")).rpartition(".")
    imported = [f"from {module} import {name}"] if module not in ("", "__main__") and "<locals>" not in module else []
    lines = ["import torch", *imported, f"net = {built(net, name)}"]
    lines += [f'net.load_state_dict(torch.load("{out}/global.pt", weights_only=True))']
    if "personal.pt" in files:
        lines += [f'users = torch.load("{out}/personal.pt", weights_only=True)  # client -> state dict']
    return lines


def built(net: dict[str, Any], name: str) -> str:
    """The call that makes the net. Of a net that Python built the class alone is known, unless it is fedlit's."""
    arguments = net.get("init_args", {})
    if not net or ("structure" in net and not net["class_path"].startswith("fedlit.")):
        return f"{name}(…)  # with the arguments that you gave it"
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
