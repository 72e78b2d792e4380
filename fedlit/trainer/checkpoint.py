"""Checkpoints of a run folder: last.ckpt and previous.ckpt by time or by rounds, best.ckpt by validation."""

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
from fedlit.client.net_parts import frozen_state, trained_state
from fedlit.client.row_layout import archive
from fedlit.client.row_store import RowStore
from fedlit.client.weights_file import is_whole
from fedlit.data.base import FederatedDataModule
from fedlit.errors import DamagedRowsError, ResumeError, RunError
from fedlit.files import write_bytes
from fedlit.params import under_prefix, with_prefix
from fedlit.ranks import Ranks
from fedlit.results.folder import RunFolder
from fedlit.rounds.loop import FederatedLoop
from fedlit.trainer.checkpoint_form import fault_in
from fedlit.trainer.frozen_file import Named

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
"""Errors that reading a damaged archive may raise."""
SECONDS_BETWEEN = 30.0
"""A kill loses at most this much work, unless checkpoint_every says otherwise."""


class RunCheckpoint(Checkpoint):
    """Writes the checkpoints of a run folder, always with the state at a round's end.

    Args:
        folder: the run's folder.
        every: rounds between checkpoints; by time (30 s) unless given. The end of a run always has one.
    """

    def __init__(self, folder: RunFolder, every: int | None) -> None:
        self.folder = folder
        self.every = every
        self.frozen: Named = {}
        """The file with the frozen part of the net, and its fingerprint."""
        self.saved_round: int | None = None
        self.saved_best: int | None = None
        self.saved_at = time.monotonic()
        self.rows_files: list[Path | None] = []
        """Files with the rows of the last two checkpoints that this process wrote."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save a checkpoint when one is due."""
        if self.every is not None:
            due = loop_of(trainer).rounds_done % self.every == 0
        else:
            due = time.monotonic() - self.saved_at >= SECONDS_BETWEEN
        if due:
            self.save(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Always save at the end, or after an interrupt."""
        self.save(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Save the last finished round of a run that fails; a second Ctrl-C ends it without saving."""
        if isinstance(exception, KeyboardInterrupt) or not loop_of(trainer).history.rows:
            return
        try:
            self.save(trainer)
        except RunError as error:  # the disk may have failed; the error that ended the run is the one to raise
            log.warning(str(error))

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the W&B run's id, so that a resumed run continues its curves, and the list of client records.

        The frozen part of the net is in a file of its own.
        """
        checkpoint["client_parts"] = self.folder.parts.state_dict()
        checkpoint["frozen"] = self.frozen
        for name in with_prefix("net", frozen_state(client_of(pl_module).net)):
            checkpoint["state_dict"].pop(name, None)
        wandb = [logger for logger in trainer.loggers if isinstance(logger, WandbLogger)]
        checkpoint["wandb_id"] = wandb[0].version if wandb else None

    def save(self, trainer: Trainer) -> None:
        """Save a checkpoint, client records first: no checkpoint may be newer than the rows that resume keeps."""
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
        """Remove old files of rows, but none that another process wrote: previous.ckpt may need it."""
        self.rows_files = [*self.rows_files[-1:], file]
        if len(self.rows_files) == 2:
            self.folder.drop_rows(keep=self.rows_files)


def loop_of(trainer: Trainer) -> FederatedLoop:
    """The federated loop of a trainer."""
    loop = trainer.fit_loop
    assert isinstance(loop, FederatedLoop)
    return loop


def client_of(module: LightningModule) -> Client:
    """The module, which is the run's algorithm."""
    assert isinstance(module, Client)
    return module


def write_tensors(path: Path, content: dict[str, Any]) -> None:
    """Save tensors and plain data."""
    write_bytes(path, archive(content))


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint that was read and is undamaged."""

    path: Path
    rounds: int
    engine: dict[str, Any] | None
    """The loop's record of its engine."""
    content: dict[str, Any] = field(repr=False)

    @property
    def frozen(self) -> Named:
        """The file with the frozen part of the net, and its fingerprint; empty if the whole net is trained."""
        named: Named = self.content.get("frozen", {})
        return named


class PreloadedCheckpointIO(TorchCheckpointIO):
    """Gives Lightning the checkpoint that was already read and checked; others are read from their files.

    Args:
        checkpoint: the one from which the run continues.
    """

    def __init__(self, checkpoint: LoadedCheckpoint) -> None:
        self._checkpoint: LoadedCheckpoint | None = checkpoint

    def load_checkpoint(self, path: Any, *args: Any, **options: Any) -> dict[str, Any]:
        """Return the content once, and keep no reference: it is large."""
        checkpoint, self._checkpoint = self._checkpoint, None
        if checkpoint is not None and Path(path) == checkpoint.path:
            return checkpoint.content
        return super().load_checkpoint(path, *args, **options)


def find_checkpoint(folder: RunFolder) -> LoadedCheckpoint | None:
    """The newest undamaged checkpoint, or None if no round was saved yet.

    If last.ckpt or its rows on disk are damaged, it is previous.ckpt, and a line says so.
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
    """(content, "") of a checkpoint, or (None, what is wrong with it)."""
    content = read_tensors(path)
    if content is None:
        return None, ""
    fault = fault_in(content)
    return (content, "") if fault is None else (None, fault)


def check_fits(checkpoint: LoadedCheckpoint, client: Client, data: FederatedDataModule) -> None:
    """ResumeError for a checkpoint of another net, or with clients that the data do not have."""
    saved = under_prefix("net", checkpoint.content["state_dict"])
    trained = trained_state(client.net)
    other = [name for name in saved if name in frozen_state(client.net)]
    other += [name for name in trained if name not in saved] if checkpoint.frozen else []
    if other:
        was = "trained, and here it is frozen" if other[0] in saved else "frozen, and here it is trained"
        raise ResumeError(
            f"{checkpoint.path} is of a run that trains another part of the net: there net.{other[0]} was {was}. Train "
            "the same parameters (model.train, or requires_grad), or start another run."
        )
    for name, value in trained.items():
        shape = getattr(saved.get(name), "shape", None)
        if shape != value.shape:
            has = "it is not there" if shape is None else f"it has the shape {tuple(shape)} there"
            raise ResumeError(
                f"{checkpoint.path} is not a checkpoint of this run: the net has net.{name} of "
                f"{tuple(value.shape)}, and {has}. Restore the file, or start the run anew with --overwrite."
            )
    most = max(checkpoint.content["loops"]["fit_loop"]["clients"]["clients"], default=0)
    if most >= data.num_clients and not data.is_fresh:
        raise ResumeError(
            f"{checkpoint.path} is not a checkpoint of this run: it has a row of client {most}, but there are "
            f"{data.num_clients} clients. Restore the file, or start the run anew with --overwrite."
        )


def recorded_wandb_id(folder: RunFolder) -> str | None:
    """The id of the W&B run, from the first checkpoint that can be read; tensors are not read."""
    for path in (folder.last, folder.previous):
        try:
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except CORRUPT_FILE_ERRORS:
            continue
        if isinstance(content, dict):
            return content.get("wandb_id")
    return None


def check_rows(states: dict[str, Any], folder: Path) -> None:
    """Read all rows that a checkpoint has on disk; DamagedRowsError if one has changed since it was written."""
    if "stored" in states:
        RowStore.load(folder, states["stored"], Ranks()).check()


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """The content of a checkpoint; None if the file is damaged."""
    content = read_tensors(path)
    return content if content is not None and "loops" in content else None


def read_tensors(path: Path) -> dict[str, Any] | None:
    """The inverse of `write_tensors`; None if the file is damaged."""
    try:
        with path.open("rb") as file:
            if not is_whole(file):
                return None
        content = torch.load(path, map_location="cpu", weights_only=True)
    except CORRUPT_FILE_ERRORS:
        return None
    return content if isinstance(content, dict) else None
