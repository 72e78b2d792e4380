"""`fedlit export`: the server's model and the users' own of a run, as plain state dicts that torch alone can load."""

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fedlit.results.config_file import read_config
from fedlit.results.folder import chosen_by
from fedlit.trainer import adapter_files
from fedlit.trainer.checkpoint import read_tensors, write_tensors
from fedlit.trainer.restore import Restored

log = logging.getLogger("fedlit")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `fedlit export`."""
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the files go; RUN/export unless given")


def main(args: argparse.Namespace) -> int:
    """Write global.pt, best.pt and personal.pt; returns the exit code."""
    restored = Restored.of(args.run)
    out = args.out or args.run / "export"
    console = Console()
    files = exported(restored)
    for name, (models, what) in files.items():
        with chosen_by("--out DIR", out):
            out.mkdir(parents=True, exist_ok=True)
            write_tensors(out / name, models)
        console.print(f"{out / name}: {what}", highlight=False, soft_wrap=True)
    if restored.folder.adapter.exists():
        count = write_adapters(restored, out / "adapters")
        what = f"of z and {count} clients, for peft.PeftModel.from_pretrained(net, folder)"
        console.print(f"{out / 'adapters'}: {what}", highlight=False, soft_wrap=True)
    console.print("\nTo load them:\n", highlight=False)
    config = restored.folder.config
    described = read_config(config) if config.is_file() else {}
    for line in example(described, out, list(files), has_frozen=bool(restored.frozen)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return 0


def exported(restored: Restored) -> dict[str, tuple[dict[Any, Any], str]]:
    """File -> its content and what it is."""
    frozen = restored.frozen
    files: dict[str, tuple[dict[Any, Any], str]] = {
        "global.pt": (frozen | restored.model, f"z after round {restored.rounds}")
    }
    file = restored.folder.best
    best = read_tensors(file) if file.exists() else None
    if file.exists() and (best is None or not isinstance(best.get("model"), dict) or "round" not in best):
        log.warning(f"{file} is damaged, or is not fedlit's: best.pt is left out.")
    elif best is not None:
        files["best.pt"] = (frozen | best["model"], f"z after round {best['round']}, the best on validation")
    users, personal = restored.personal_models(), restored.personal
    if users:
        before = "" if personal.adaptation is None else ", before that step"
        part = ", the trained part" if frozen else ""
        what = f"of {len(users)} clients that have trained{part}: {personal.describe()}{before}"
        files["personal.pt"] = (users, what)
    return files


def write_adapters(restored: Restored, out: Path) -> int:
    """Write the adapter of z and of every user's model as files of peft; returns how many users there are."""
    users = restored.personal_models()
    with chosen_by("--out DIR", out):
        for name, model in [("global", restored.model), *((f"client-{user}", model) for user, model in users.items())]:
            adapter_files.write(restored.folder, out / name, model)
    return len(users)


def example(config: dict[str, Any], out: Path, files: Sequence[str], *, has_frozen: bool = False) -> list[str]:
    """Lines of Python that load the files; they run as they are where the config says how the net was built."""
    net = config.get("model", {}).get("init_args", {}).get("net", {})
    module, _, name = str(net.get("class_path", "Net")).rpartition(".")
    imported = [f"from {module} import {name}"] if module not in ("", "__main__") and "<locals>" not in module else []
    lines = ["import torch", *imported, f"net = {built(net, name)}"]
    lines += [f'net.load_state_dict(torch.load("{out}/global.pt", weights_only=True))']
    if "personal.pt" in files:
        lines += [f'users = torch.load("{out}/personal.pt", weights_only=True)  # client -> state dict']
        lines += ["net.load_state_dict(users[0], strict=False)  # the frozen part stays"] if has_frozen else []
    return lines


def built(net: dict[str, Any], name: str) -> str:
    """The call that makes the net. Of a net that Python built the class alone is known, unless it is fedlit's."""
    arguments = net.get("init_args", {})
    if not net or ("structure" in net and not net["class_path"].startswith("fedlit.")):
        return f"{name}(…)  # with the arguments that you gave it"
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
