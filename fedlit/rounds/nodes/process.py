"""The life of a server's or client's process: it builds the run, connects to the others and works until it is ended."""

import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing import connection, parent_process
from typing import Any, Protocol

import torch

from fedlit.errors import DivergedError, FedlitError
from fedlit.rounds.nodes.client import ClientLoop
from fedlit.rounds.nodes.messages import ConnectionLostError, Wire, join_store
from fedlit.rounds.nodes.plan import COORDINATOR, NodeProcess, Plan
from fedlit.rounds.nodes.server import ServerLoop


class BuiltRun(Protocol):
    """A run that was built from a command line."""

    trainer: Any
    """A FederatedTrainer."""
    model: Any
    datamodule: Any


Build = Callable[[], BuiltRun]
"""Builds the run in each process. It must be a module-level function, since it is pickled by name."""


def run_part(part: NodeProcess, plan: Plan, build: Build, port: int) -> None:
    """The whole life of the process. It never returns: other threads may be waiting in gloo."""
    os.setpgid(0, 0)  # Ctrl-C is for the coordinator, which ends this process
    threading.Thread(target=end_with_parent, daemon=True).start()
    logging.getLogger("fedlit").setLevel(logging.WARNING)  # the coordinator logs it
    torch.set_num_threads(1)
    try:
        code = serve(part, plan, build, port)
    except ConnectionLostError:
        code = 0  # another process has ended, and the coordinator handles it
    except FedlitError as error:
        print(f"fedlit: {part.name}: {error}", file=sys.stderr)
        code = error.exit_code
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)


def serve(part: NodeProcess, plan: Plan, build: Build, port: int) -> int:
    """Build the run, connect to the others, and work until it fails; returns the exit code."""
    store = join_store(port, plan.timeout)
    run = build()
    run.datamodule.setup("fit")
    store.set(f"ready/{part.rank}", "1")
    wire = Wire(store, part.rank, plan.size, plan.timeout)
    try:
        make = ServerLoop if part.worker is None else ClientLoop
        run.trainer.use_loop(partial(make, part=part, plan=plan, wire=wire))
        run.trainer.fit(run.model, datamodule=run.datamodule)
    except ConnectionLostError:
        raise
    except Exception as error:
        if not isinstance(error, FedlitError):
            traceback.print_exc()
        wire.send(COORDINATOR, {"error": described(error)})
    return 1


def described(error: Exception) -> dict[str, Any]:
    """An error as plain data."""
    where = {"round": error.round, "client": error.client} if isinstance(error, DivergedError) else {}
    notes = " ".join(getattr(error, "__notes__", []))
    return {"kind": type(error).__name__, "text": f"{error} {notes}".strip(), **where}


def end_with_parent() -> None:
    """End this process as soon as the coordinator has ended."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
