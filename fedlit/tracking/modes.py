"""Whether W&B is online, offline or disabled; never a prompt, never a hang."""

import logging
import netrc
import os
from pathlib import Path

from fedlit.errors import ConfigError

log = logging.getLogger("fedlit")

_HOW = "W&B is off: no credentials found. Turn it on with 'wandb login' or --wandb offline."


def checked_mode(asked: str | None) -> str:
    """The mode of a run that starts; a line says how to turn W&B on where nobody has decided."""
    mode = wandb_mode(asked)
    if mode == "disabled" and asked is None and "WANDB_MODE" not in os.environ:
        log.info(_HOW)
    if mode == "online" and not has_credentials():
        raise ConfigError(
            "W&B is to be online, but there are no credentials. Run 'wandb login', or give --wandb offline."
        )
    return mode


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
