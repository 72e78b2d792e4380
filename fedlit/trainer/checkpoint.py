"""Checkpoints of a run folder: last.ckpt and previous.ckpt by time or by rounds, best.ckpt by validation accuracy."""

import logging
import pickle
import time
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.plugins.io import TorchCheckpointIO

from fedlit.client.base import Client
from fedlit.client.row_layout import archive
from fedlit.client.row_store import RowStore
from fedlit.client.weights_file import is_whole
from fedlit.data.base import FederatedDataModule
from fedlit.errors import DamagedRowsError, ResumeError, RunError
from fedlit.files import write_bytes
from fedlit.ranks import Ranks
from fedlit.results.folder import RunFolder
from fedlit.rounds.loop import FederatedLoop
from fedlit.trainer.checkpoint_form import fault_in

log = logging.getLogger("fedlit")

CORRUPT_FILE_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    pickle.UnpicklingError,
    RuntimeError,
    OSError,
    EOFError,
    ValueError,
    LookupError,
)
"""The many ways in which a damaged archive fails."""
SECONDS_BETWEEN = 30.0
"""A kill loses at most this much work, unless checkpoint_every says otherwise."""


class RunCheckpoint(Checkpoint):
    """Writes the checkpoints of a run folder; the state is always that of a round's end.

    Args:
        folder: the run's folder.
        every: rounds between checkpoints; by time (30 s) unless given. The end of a run always has one.
    """

    def __init__(self, folder: RunFolder, every: int | None) -> None:
        self.folder = folder
        self.every = every
        self.saved_round: int | None = None
        self.saved_best: int | None = None
        self.saved_at = time.monotonic()
        self.rows_files: list[Path | None] = []
        """Of the last two checkpoints that this process wrote: where their rows are."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save when it is time."""
        if self.every is not None:
            due = loop_of(trainer).rounds_done % self.every == 0
        else:
            due = time.monotonic() - self.saved_at >= SECONDS_BETWEEN
        if due:
            self.save(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The end, or an interrupt: always a checkpoint."""
        self.save(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """A run that fails keeps its last finished round; one that is stopped at once is not held up."""
        if isinstance(exception, KeyboardInterrupt) or not loop_of(trainer).history.rows:
            return
        try:
            self.save(trainer)
        except RunError as error:  # the disk may be what failed: what ended the run is said, not this
            log.warning(str(error))

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """The W&B run's id: a resumed run continues its own curve. And which parts of client records are the run's."""
        checkpoint["client_parts"] = self.folder.parts.state_dict()
        wandb = [logger for logger in trainer.loggers if isinstance(logger, WandbLogger)]
        checkpoint["wandb_id"] = wandb[0].version if wandb else None

    def save(self, trainer: Trainer) -> None:
        """Client records first, so that no checkpoint is newer than the rows that resume keeps."""
        loop = loop_of(trainer)
        if self.saved_round == loop.rounds_done or not loop.ranks.is_first:
            return
        with loop.profile("checkpoint"):
            self._write(trainer, loop)
        self.saved_round, self.saved_at = loop.rounds_done, time.monotonic()

    def _write(self, trainer: Trainer, loop: FederatedLoop) -> None:
        self.folder.flush_clients()
        if loop.state.server_history.columns:
            self.folder.write_servers(loop.state.server_history.table())
        with loop.states.saved_apart():
            self.folder.rotate_checkpoint(lambda path: trainer.save_checkpoint(path, weights_only=False))
        self._drop_rows_that_no_checkpoint_needs(loop.states.file)
        if loop.best.round is not None and loop.best.round != self.saved_best:
            write_tensors(self.folder.best, loop.best.state_dict())
            self.saved_best = loop.best.round

    def _drop_rows_that_no_checkpoint_needs(self, file: Path | None) -> None:
        """Where rows moved to another file or to memory. What this process did not write may be previous.ckpt's."""
        self.rows_files = [*self.rows_files[-1:], file]
        if len(self.rows_files) == 2:
            self.folder.drop_rows(keep=self.rows_files)


def loop_of(trainer: Trainer) -> FederatedLoop:
    """The federated loop of a trainer."""
    loop = trainer.fit_loop
    assert isinstance(loop, FederatedLoop)
    return loop


def write_tensors(path: Path, content: dict[str, Any]) -> None:
    """Save tensors and plain data."""
    write_bytes(path, archive(content))


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint that can be read."""

    path: Path
    rounds: int
    engine: dict[str, Any] | None
    """What the loop recorded of its engine."""
    content: dict[str, Any] = field(repr=False)


class PreloadedCheckpointIO(TorchCheckpointIO):
    """Gives Lightning the checkpoint that was read already, to see whether it is whole; others come from their files.

    Args:
        found: the checkpoint that a run goes on from.
    """

    def __init__(self, found: LoadedCheckpoint) -> None:
        self._found: LoadedCheckpoint | None = found

    def load_checkpoint(self, path: Any, *args: Any, **options: Any) -> dict[str, Any]:
        """The content, once: nobody holds it longer than it is needed."""
        found, self._found = self._found, None
        if found is not None and Path(path) == found.path:
            return found.content
        return super().load_checkpoint(path, *args, **options)


def find_checkpoint(folder: RunFolder) -> LoadedCheckpoint | None:
    """The newest whole checkpoint, or None where no round was saved yet.

    A damaged last.ckpt, or one whose rows on disk are damaged, falls back to previous.ckpt, and a line says so.
    """
    reasons: dict[str, str] = {}
    rows_error: DamagedRowsError | None = None
    for path in (folder.last, folder.previous):
        if not path.exists():
            continue
        content, reason = look_at(path)
        try:
            if content is not None:
                check_rows(content["loops"]["fit_loop"]["clients"], path.parent)
        except DamagedRowsError as error:
            rows_error = rows_error or error
            content, reason = None, f"{error.file.name}: {error.what}"
        if content is None:
            reasons[path.name] = reason
            continue
        loop = content["loops"]["fit_loop"]
        for name, why in reasons.items():
            log.warning(
                f"{folder.checkpoints / name} is damaged{f' ({why})' if why else ''}; continuing from {path.name}, "
                f"after round {loop['rounds']}."
            )
        return LoadedCheckpoint(path, loop["rounds"], loop["engine"], content)
    if rows_error is not None:
        raise rows_error
    if reasons:
        why = "".join(f"; in {name} {reason}" for name, reason in reasons.items() if reason)
        raise ResumeError(
            f"{' and '.join(reasons)} in {folder.checkpoints} cannot be read: the files are damaged, or not "
            f"fedlit's{why}. Restore them from a copy, or start the run anew with --overwrite."
        )
    return None


def look_at(path: Path) -> tuple[dict[str, Any] | None, str]:
    """The content of a checkpoint; or None, and what is wrong with it."""
    content = read_tensors(path)
    if content is None:
        return None, ""
    fault = fault_in(content)
    return (content, "") if fault is None else (None, fault)


def check_fits(found: LoadedCheckpoint, client: Client, data: FederatedDataModule) -> None:
    """ResumeError for a checkpoint of another net, or of clients that the data do not have."""
    saved, own = found.content["state_dict"], client.state_dict()
    for name, value in own.items():
        shape = getattr(saved.get(name), "shape", None)
        if name.startswith("net.") and shape != value.shape:
            has = "it is not there" if shape is None else f"it has the shape {tuple(shape)} there"
            raise ResumeError(
                f"{found.path} is not a checkpoint of this run: the net has {name} of {tuple(value.shape)}, and {has}. "
                "Restore the file, or start the run anew with --overwrite."
            )
    most = max(found.content["loops"]["fit_loop"]["clients"]["clients"], default=0)
    if most >= data.num_clients and not data.is_fresh:
        raise ResumeError(
            f"{found.path} is not a checkpoint of this run: it has a row of client {most}, but there are "
            f"{data.num_clients} clients. Restore the file, or start the run anew with --overwrite."
        )


def recorded_wandb_id(folder: RunFolder) -> str | None:
    """The id of the run's W&B run, from whichever checkpoint can be read; no tensor is."""
    for path in (folder.last, folder.previous):
        try:
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except CORRUPT_FILE_ERRORS:
            continue
        if isinstance(content, dict):
            return content.get("wandb_id")
    return None


def check_rows(states: dict[str, Any], folder: Path) -> None:
    """Read all rows that a checkpoint in the folder has on disk; DamagedRowsError where one is not what was written."""
    if "stored" in states:
        RowStore.load(folder, states["stored"], Ranks()).check()


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """The content of a checkpoint; None if the file is damaged."""
    content = read_tensors(path)
    return content if content is not None and "loops" in content else None


def read_tensors(path: Path) -> dict[str, Any] | None:
    """The inverse of `write_tensors`, tensors and plain data only; None if the file is damaged."""
    try:
        with path.open("rb") as file:
            if not is_whole(file):
                return None
        content = torch.load(path, map_location="cpu", weights_only=True)
    except CORRUPT_FILE_ERRORS:
        return None
    return content if isinstance(content, dict) else None
