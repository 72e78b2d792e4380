"""`fedlit fit`: trains, with the run's lines in its folder and W&B around it; ends with a table."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console

from fedlit.config.files import resolve_configs
from fedlit.config.fit_cli import FitCLI
from fedlit.remote.replay import ReplayLoop
from fedlit.remote.replay_checks import check_clients, check_settings
from fedlit.results.events import read_events
from fedlit.results.folder import RunFolder
from fedlit.trainer.summary import result_table
from fedlit.trainer.trainer import FederatedTrainer, quiet_lightning
from fedlit.trainer.wandb.session import tracked


def fit(arguments: list[str]) -> int:
    """Train; ends with a small table and the run folder's path."""
    quiet_lightning()
    cli = FitCLI(resolve_configs(arguments))
    trainer = cli.trainer
    folder = trainer.folder
    assert isinstance(folder, RunFolder)
    if cli.config.replay is not None:
        replay(cli, Path(cli.config.replay))
    with tracked(trainer, artifact=cli.config.wandb_artifact), logged_to(folder):
        trainer.fit(cli.model, datamodule=cli.datamodule)
    return conclude(trainer)


def replay(cli: FitCLI, path: Path) -> None:
    """Let the trainer repeat what happened in a federation; refuses another run before anything is written."""
    events = read_events(path)
    check_settings(events, cli.plain_config(), cli.trainer.max_epochs or 1)
    cli.datamodule.prepare_data()
    cli.datamodule.setup("fit")
    check_clients(events, cli.datamodule)
    cli.trainer.use_loop(partial(ReplayLoop, events=events))


def conclude(trainer: FederatedTrainer) -> int:
    """The table and the run folder's path; returns the exit code."""
    assert trainer.folder is not None
    code = 130 if trainer.interrupted else 0
    if not trainer.is_global_zero:
        return code
    console = Console()
    console.print(result_table(trainer.summary))
    console.print(f"run folder: {trainer.folder.path}", soft_wrap=True, highlight=False)
    if trainer.interrupted:
        print("fedlit: interrupted; continue with the same command and --resume.", file=sys.stderr)
    return code


@contextmanager
def logged_to(folder: RunFolder) -> Iterator[None]:
    """fedlit's lines also go to the run's log.txt, while the folder is this run's."""
    handler = logging.FileHandler(folder.log, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    handler.addFilter(lambda record: folder.is_claimed)
    logger = logging.getLogger("fedlit")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
