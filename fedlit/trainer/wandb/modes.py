"""Chooses W&B's mode: online, offline or disabled; without a prompt, and without hanging."""

import logging
import netrc
import os
import ssl
import threading
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from fedlit.errors import ConfigError

log = logging.getLogger("fedlit")

_HOW = "W&B is off: no credentials found. Turn it on with 'wandb login' or --wandb offline."

_PATIENCE_S = 5.0
"""How long a server may be silent before the run goes on without it."""


def checked_mode(asked: str | None, folder: Path) -> str:
    """The mode of a run in this folder; a line says so if it is off, or offline for lack of a network, by default."""
    mode = wandb_mode(asked)
    if mode == "online" and not has_credentials():
        raise ConfigError(
            "--wandb is online, but there are no credentials. Run 'wandb login', or give --wandb offline."
        )
    if asked is not None or "WANDB_MODE" in os.environ:
        return mode
    if mode == "disabled":
        log.info(_HOW)
    if mode == "online" and not reachable(server()):
        log.warning(
            f"W&B does not answer at {server()}, so this run is logged offline. Send it later with "
            f"'wandb sync {folder}/wandb/offline-run-*'. With --wandb online it would fail instead; --wandb disabled "
            "turns W&B off."
        )
        return "offline"
    return mode


def server() -> str:
    """The address of W&B's server, or the one in WANDB_BASE_URL."""
    return os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai"


def reachable(address: str) -> bool:
    """Whether a server answers within some seconds, through the user's proxy if there is one.

    W&B itself waits two minutes. A thread is needed, because looking up a name has no timeout.
    """
    answered = threading.Event()

    def knock() -> None:
        try:
            urllib.request.urlopen(address, timeout=_PATIENCE_S).close()
            answered.set()
        except urllib.error.HTTPError:  # a refusal is an answer
            answered.set()
        except (OSError, ValueError, HTTPException) as error:  # W&B may accept a certificate that Python refuses
            if isinstance(getattr(error, "reason", error), ssl.SSLError):
                answered.set()

    thread = threading.Thread(target=knock, daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    return answered.is_set()


def wandb_mode(asked: str | None) -> str:
    """The mode asked for, else WANDB_MODE, else online if there are credentials."""
    if asked is not None:
        return asked
    chosen = os.environ.get("WANDB_MODE")
    if chosen is not None:
        return chosen if chosen in ("online", "offline") else "disabled"
    return "online" if has_credentials() else "disabled"


def has_credentials() -> bool:
    """Whether there is an API key in the environment or in the user's netrc; there is no prompt."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    path = Path(os.environ.get("NETRC", Path.home() / ".netrc"))
    try:
        return netrc.netrc(path).authenticators(urlsplit(server()).hostname or "") is not None
    except (OSError, netrc.NetrcParseError):
        return False
