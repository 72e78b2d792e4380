"""Weights & Biases: online, offline or disabled; never a prompt, never a hang."""

import logging
import netrc
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import Logger, WandbLogger

from fedlit.checkpoint import find_checkpoint
from fedlit.errors import ConfigError
from fedlit.run import RunFolder

log = logging.getLogger("fedlit")

_HOW = "W&B is off: no credentials found. Turn it on with 'wandb login' or --wandb offline."


def wandb_logger(asked: str | None, folder: Path, config: dict[str, Any], *, resume: bool) -> WandbLogger | None:
    """The logger of a run, or None. A resumed run continues its own curve."""
    mode = wandb_mode(asked)
    if mode == "disabled":
        if asked is None and "WANDB_MODE" not in os.environ:
            log.info(_HOW)
        return None
    if mode == "online" and not has_credentials():
        raise ConfigError(
            "W&B is to be online, but there are no credentials. Run 'wandb login', or give --wandb offline."
        )
    found = find_checkpoint(RunFolder(folder)) if resume and folder.exists() else None
    data, algorithm = (config[part]["class_path"].rsplit(".", 1)[-1] for part in ("data", "model"))
    return WandbLogger(
        project=os.environ.get("WANDB_PROJECT", "fedlit"),
        name=folder.name,
        id=found.wandb_id if found is not None else None,
        resume="allow",
        save_dir=str(folder),
        offline=mode == "offline",
        config=config,
        job_type=algorithm,
        tags=[data],
    )


def finish_wandb(loggers: Iterable[Logger]) -> None:
    """Close W&B's run: the process may go on, and the next run must not write into this one."""
    if any(isinstance(logger, WandbLogger) for logger in loggers):
        import wandb

        wandb.finish()  # not logger.experiment, which would start a run that was refused


def wandb_mode(asked: str | None) -> str:
    """What the user asked for, else WANDB_MODE, else online where there are credentials."""
    if asked is not None:
        return asked
    chosen = os.environ.get("WANDB_MODE")
    if chosen is not None:
        return chosen if chosen in ("online", "offline") else "disabled"
    return "online" if has_credentials() else "disabled"


def has_credentials() -> bool:
    """An API key in the environment or in the user's netrc; asks nobody."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    path = Path(os.environ.get("NETRC", Path.home() / ".netrc"))
    try:
        return netrc.netrc(path).authenticators("api.wandb.ai") is not None
    except (OSError, netrc.NetrcParseError):
        return False
