"""Opening a run folder, for a new run or a resumed one, which must have the settings, net and engine of its folder."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from fedlit.client.base import Client
from fedlit.data.base import FederatedDataModule
from fedlit.engines.engine_choice import Request, check_same_engine
from fedlit.errors import ResumeError, RunError, understood
from fedlit.results.folder import RunFolder
from fedlit.trainer.checkpoint import LoadedCheckpoint, check_fits, find_checkpoint
from fedlit.trainer.description import check_same_settings
from fedlit.trainer.frozen_file import check_same

log = logging.getLogger("fedlit")


def find_resumed(
    folder: RunFolder, config: Mapping[str, Any], as_once: Callable[[], Mapping[str, Any]] | None, *, resume: bool
) -> LoadedCheckpoint | None:
    """The checkpoint of the run in a folder, or None if no round was saved yet; an error for another run.

    Args:
        folder: it holds a run.
        config: the settings now.
        as_once: describes the run as fedlit 0.1 did.
        resume: whether the user asked for it.
    """
    if not resume:
        raise RunError(
            f"{folder.path} already holds a run. Continue it with --resume, start anew with --overwrite, or "
            "choose another folder with --run DIR. In Python: resume=True, overwrite=True or run=DIR of "
            "FederatedTrainer."
        )
    check_same_settings(folder, config, as_once)
    return find_checkpoint(folder)


def check_resumed(
    folder: RunFolder,
    checkpoint: LoadedCheckpoint,
    client: Client,
    data: FederatedDataModule,
    rounds: int | None,
    request: Request,
    processes: int,
) -> None:
    """ResumeError unless the checkpoint can be continued with this client, these data, rounds and engine."""
    check_rounds(folder, checkpoint.rounds, rounds)
    check_fits(checkpoint, client, data)
    check_same(client.net, checkpoint.frozen, checkpoint.path)
    if checkpoint.engine is not None:
        with understood(checkpoint.path):
            check_same_engine(checkpoint.engine, request, processes)
    done = checkpoint.rounds == rounds
    more = ", so nothing is left to train; more rounds are added with --trainer.rounds" if done else ""
    log.info(f"resumed after round {checkpoint.rounds} of {rounds}{more}")


def prepare_folder(
    folder: RunFolder, config: dict[str, Any], checkpoint: LoadedCheckpoint | None, *, overwrite: bool
) -> None:
    """Write config.yaml, and remove what the run will write again: everything, or what is newer than the checkpoint."""
    if overwrite and folder.holds_run():
        folder.clear()
    folder.create(config)
    if checkpoint is None:
        folder.drop_rows()
        folder.drop_clients_after(-1)
    else:
        folder.drop_clients_after(checkpoint.rounds, checkpoint.content.get("client_parts"))


def check_rounds(folder: RunFolder, done: int, rounds: int | None) -> None:
    """ResumeError if a resumed run has more finished rounds than it may have."""
    if rounds is not None and rounds < done:
        raise ResumeError(
            f"{folder.path} holds a run with {done} finished rounds, but trainer.rounds is {rounds}. Give {done} or "
            "more to resume it, or start another run with --run DIR (in Python run=DIR)."
        )
