"""W&B on the command line: the run of a `fedlit fit`, from its config to its end."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedlit.errors import require
from fedlit.results.folder import RunFolder
from fedlit.results.runs import dotted
from fedlit.trainer.checkpoint import recorded_wandb_id
from fedlit.trainer.trainer import FederatedTrainer
from fedlit.trainer.wandb.logger import ROUND, WandbRun
from fedlit.trainer.wandb.modes import checked_mode
from fedlit.trainer.wandb.users import runs_of

PICTURE = "about/partition"
"""The key of partition.png: which client has which samples."""


def wandb_run(
    asked: str | None, folder: Path, config: dict[str, Any], *, experiment: str, resume: bool, artifact: bool
) -> WandbRun | None:
    """The W&B run of a run folder, or None. A resumed run continues its own curves."""
    mode = checked_mode(asked, folder)
    require(
        not artifact or mode != "disabled", "--wandb_artifact keeps checkpoints in W&B, which is off. Give --wandb too."
    )
    if mode == "disabled":
        return None
    settings = dotted(config)
    return WandbRun(
        project=os.environ.get("WANDB_PROJECT", "fedlit"),
        name=folder.name,
        id=os.environ.get("WANDB_RUN_ID") or (recorded_wandb_id(RunFolder(folder)) if resume else None),
        resume="allow",
        save_dir=str(folder),
        offline=mode == "offline",
        config=settings,
        group=experiment,
        job_type=settings["model"],
        tags=[settings["data"]],
    )


@contextmanager
def tracked(trainer: FederatedTrainer, *, artifact: bool) -> Iterator[None]:
    """Around `fit`: end W&B's run with it; its exit code is that of the command."""
    runs, code = runs_of(trainer), 1
    try:
        yield
        for run in runs:
            complete(run, trainer, artifact=artifact)
        code = 130 if trainer.interrupted else 0
    except KeyboardInterrupt:
        code = 130
        raise
    finally:
        for run in runs:
            run.finish(code)


def complete(run: WandbRun, trainer: FederatedTrainer, *, artifact: bool) -> None:
    """Send what is known only after training: thresholds, the partition, checkpoints."""
    import wandb

    folder, summary = trainer.folder, trainer.summary
    assert folder is not None
    known = {name: value for name, value in summary.items() if "/" in name}  # metrics of the run as a whole
    run.attempt(lambda live: live.summary.update(known))
    run.attempt(lambda live: live.log({PICTURE: wandb.Image(str(folder.partition_picture)), ROUND: summary["rounds"]}))
    if artifact:
        run.attempt(lambda live: live.log_artifact(checkpoints(live.id, folder, summary)))


def checkpoints(run_id: str, folder: RunFolder, summary: dict[str, Any]) -> Any:
    """The last and best checkpoint and the rows on disk as one artifact; W&B copies it until it is uploaded."""
    import wandb

    described = {name: summary[name] for name in ("rounds", "algorithm", "data", "seed")}
    artifact = wandb.Artifact(f"checkpoint-{run_id}", type="model", metadata=described)
    for path in (folder.last, folder.best, *folder.checkpoints.glob("rows-*.bin")):
        if path.exists():
            artifact.add_file(str(path))
    return artifact
