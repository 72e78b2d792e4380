"""FederatedTrainer: makes objects of arguments. `fit.py` starts a run with them; a round is in `rounds/round.py`."""

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from pytorch_lightning.callbacks import Checkpoint, ProgressBar
from pytorch_lightning.loggers import Logger

from fedlit.client.initial_weights import InitialWeights
from fedlit.client.states_location import StatesPlace
from fedlit.client.step import AdaptOn, FinetuneFrom
from fedlit.clock import Clock
from fedlit.engines.device import Accelerator, Precision, check_precision, find_accelerator
from fedlit.engines.engine_choice import EngineName, Request
from fedlit.engines.processes.strategy import FederatedStrategy, find_strategy
from fedlit.errors import nearest, require
from fedlit.evaluation.round_metrics import EXTRA_METRICS
from fedlit.recorded import Recorded
from fedlit.results.folder import RunFolder
from fedlit.rounds.gathering import RoundOptions
from fedlit.rounds.loop import FederatedLoop
from fedlit.server.base import ServerCallback
from fedlit.server.buffer import Buffer
from fedlit.server.cloud import Cloud
from fedlit.server.optimizers import ServerOptimizer, find_server_optimizer
from fedlit.server.sampling import Sampler, find_sampler
from fedlit.server.weights import Weighting
from fedlit.trainer.checkpoint import RunCheckpoint
from fedlit.trainer.configuration_checks import checked_parts, evaluation_options, refuse_lightning_arguments
from fedlit.trainer.fit import Fit
from fedlit.trainer.fit_results import FitResults
from fedlit.trainer.progress_bar import RoundProgressBar, show_lines


class FederatedTrainer(Recorded, FitResults, Trainer):  # type: ignore[misc]  # test and validate differ from Lightning's
    """A Lightning trainer whose epochs are federated rounds.

    Args:
        rounds: T: rounds to train.
        clients_per_round: S: clients drawn for each round.
        engine: what trains a cohort; `auto` decides from counted work and says why.
        lanes: clients that a worker of the vectorized engine trains at once; decided unless given.
        workers: threads of the vectorized engine; as many as `threads` allows unless given.
        threads: threads that a process uses at most, in training and evaluation; OMP_NUM_THREADS, or a thread for each
            core, unless given. Small nets run faster with one, and then one is used.
        compiled: whether the vectorized engine compiles its program; unless given, it does if there is a C++ compiler.
        sampler: who trains: uniform, all, size, or a Sampler.
        weights: how clients count in the average: samples, uniform, dual, or a Weighting; the algorithm's unless given.
        server_optimizer: what moves z along the averaged update: SGD, FedAvgM, FedAdam, FedYogi, FedAdagrad.
        eval_every: rounds between evaluations; the last round is always evaluated.
        checkpoint_every: rounds between checkpoints of the run folder; every 30 seconds unless given.
        divergence_factor: a mean training loss above this multiple of the first round's ends the run.
        store_local_models: keep each client's last model for local metrics; `auto` up to 1 GB.
        states: where the rows of clients are between rounds; `auto` takes the disk beyond an eighth of the memory.
        rounds_to: validation accuracies; the summary names the first round that reaches each.
        extra_metrics: of global/train_loss, global/grad_norm2, the same with _uniform (clients count equally),
            personal/train_loss and local/grad_norm2; each costs a pass over all training data.
        finetune_lr: measure the personal models once more after a step of this rate (finetuned/*); FedBC: 0.01. Of a
            list, each evaluated round takes the value that is best on validation samples.
        finetune_on: the part of a user's data for that step; FedBC's protocol is test.
        finetune_epochs: so many passes over that part of the data, in shuffled batches, instead of one step; a number,
            or a list as for finetune_lr.
        finetune_part: fine-tune this part of the net alone, such as its last layer: the name of a module or parameter,
            or a pattern with *.
        finetune_from: the model that is fine-tuned: the personal model unless given, or global, the server's.
        newcomers_every: rounds between measurements of the clients that data.newcomers holds back; they are measured
            after the last round alone unless given.
        clock: simulated seconds that clients take (time/sim_s); no time is simulated unless given.
        cloud: several servers, each with clients of its own, that mix their models; clients_per_round is each server's.
        buffer: the server steps after K reports instead of waiting for a cohort (FedBuff); needs a clock.
        seed: decides initial weights, cohorts and batches (data.seed decides the data).
        initial_weights: `seed` lets the net's layers draw what is trained when the run starts; `net` keeps
            what the net has.
        run: folder for metrics, client records, checkpoints and summary; no files are written unless given.
        resume: continue the run in that folder.
        overwrite: delete the run in that folder and start from its first round.
        precision: Lightning's precision: 32-true, 64-true for exact comparisons, bf16-mixed, bf16-true; the 16-bit
            floats (16-mixed, 16-true) are refused.
        logger: Lightning loggers.
        callbacks: Lightning callbacks and server callbacks.
        max_time: stop after this long, at a round's end.
        enable_progress_bar: show the bar by rounds.
        default_root_dir: where Lightning's loggers and callbacks write by default.
        profiler: Lightning's profiler.
        accelerator: where clients train: cpu, gpu, or auto, which decides from counted work and says why.
        devices: processes on this machine, or on each of several; they divide the clients of a round. Each has its own
            GPU where they train on GPUs.
        num_nodes: machines that share the run; each is given the same command.
        strategy: ddp; several devices imply it.
        rank_timeout: seconds without a finished step after which a process is given up, and the run ends; it can be
            resumed.
        refused: arguments of Lightning's trainer that make no sense here.
    """

    callbacks: list[Callback]

    def __init__(
        self,
        *,
        rounds: int = 100,
        clients_per_round: int = 10,
        engine: EngineName = "auto",
        lanes: int | None = None,
        workers: int | None = None,
        threads: int | None = None,
        compiled: bool | None = None,
        sampler: str | Sampler = "uniform",
        weights: str | Weighting | None = None,
        server_optimizer: str | ServerOptimizer = "SGD",
        eval_every: int = 1,
        checkpoint_every: int | None = None,
        divergence_factor: float = 1e4,
        store_local_models: Literal["auto"] | bool = "auto",
        states: StatesPlace = "auto",
        rounds_to: Sequence[float] = (0.4,),
        extra_metrics: Sequence[str] = (),
        finetune_lr: float | Sequence[float] | None = None,
        finetune_on: AdaptOn = "train",
        finetune_epochs: int | Sequence[int] | None = None,
        finetune_part: str | None = None,
        finetune_from: FinetuneFrom | None = None,
        newcomers_every: int | None = None,
        clock: Clock | None = None,
        cloud: Cloud | None = None,
        buffer: Buffer | None = None,
        seed: int = 0,
        initial_weights: InitialWeights = "seed",
        run: str | Path | None = None,
        resume: bool = False,
        overwrite: bool = False,
        precision: Precision = "32-true",
        logger: Logger | Iterable[Logger] | bool = False,
        callbacks: list[Callback] | Callback | None = None,
        max_time: str | timedelta | dict[str, int] | None = None,
        enable_progress_bar: bool = True,
        default_root_dir: str | Path | None = None,
        profiler: str | None = None,
        accelerator: Accelerator = "cpu",
        devices: int = 1,
        num_nodes: int = 1,
        strategy: str = "auto",
        rank_timeout: float = 60.0,
        **refused: Any,
    ) -> None:
        refuse_lightning_arguments(refused, FederatedTrainer.__init__.__annotations__)
        require(rounds >= 1, f"trainer.rounds is {rounds}; give 1 or more.")
        require(clients_per_round >= 1, f"trainer.clients_per_round is {clients_per_round}; give 1 or more.")
        require(eval_every >= 1, f"trainer.eval_every is {eval_every}; give 1 or more.")
        require(lanes is None or lanes >= 1, f"trainer.lanes is {lanes}; give 1 or more, or leave it out.")
        require(workers is None or workers >= 1, f"trainer.workers is {workers}; give 1 or more, or leave it out.")
        require(threads is None or threads >= 1, f"trainer.threads is {threads}; give 1 or more, or leave it out.")
        require(
            checkpoint_every is None or checkpoint_every >= 1,
            f"trainer.checkpoint_every is {checkpoint_every}; give 1 or more, or leave it out.",
        )
        require(divergence_factor > 1, f"trainer.divergence_factor is {divergence_factor}; give a number above 1.")
        measures = evaluation_options(
            extra_metrics,
            seed,
            lr=finetune_lr,
            on=finetune_on,
            epochs=finetune_epochs,
            part=finetune_part,
            start=finetune_from,
            newcomers_every=newcomers_every,
            eval_every=eval_every,
        )
        for name in extra_metrics:
            require(
                name in EXTRA_METRICS,
                f"trainer.extra_metrics has '{name}'. {nearest(name, EXTRA_METRICS)}Known: {', '.join(EXTRA_METRICS)}.",
            )
        require(0 <= seed < 2**32, f"The seed is {seed}; give a whole number from 0 to 4294967295.")
        check_precision(precision)
        lightning_strategy = find_strategy(devices, num_nodes, strategy, rank_timeout)
        lightning_accelerator = find_accelerator(accelerator, devices)
        quiet_lightning()
        show_lines()
        seed_everything(seed, workers=False, verbose=False)
        all_callbacks = [] if callbacks is None else [callbacks] if isinstance(callbacks, Callback) else list(callbacks)
        if enable_progress_bar and not any(isinstance(callback, ProgressBar) for callback in all_callbacks):
            all_callbacks.append(RoundProgressBar())
        self.folder = RunFolder(Path(run)) if run is not None else None
        if self.folder is not None:
            all_callbacks.append(RunCheckpoint(self.folder, checkpoint_every))
        super().__init__(
            accelerator=lightning_accelerator,
            devices=devices,
            num_nodes=num_nodes,
            strategy=lightning_strategy,
            precision=precision,
            logger=logger,
            callbacks=all_callbacks,
            max_epochs=rounds,
            max_time=max_time,
            check_val_every_n_epoch=eval_every,
            num_sanity_val_steps=0,
            log_every_n_steps=1,
            enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in all_callbacks),
            enable_progress_bar=enable_progress_bar,
            enable_model_summary=False,
            default_root_dir=default_root_dir,
            profiler=profiler,
        )
        self.seed, self.initial_weights = seed, initial_weights
        self.clock, self.cloud, self.buffer = clock, cloud, buffer
        self.clients_per_round, self.eval_every = clients_per_round, eval_every
        self.sampler = find_sampler(sampler)
        self.weights = weights
        self.rounds_to = rounds_to
        self.resume, self.overwrite = resume, overwrite
        self.server_optimizer = find_server_optimizer(server_optimizer)
        self.config: dict[str, Any] | None = None
        self.algorithms_callbacks: list[ServerCallback] = []
        where: Accelerator = accelerator if accelerator in ("auto", "cpu") else "gpu"  # Lightning's word is cuda too
        request = Request(
            engine=engine,
            lanes=lanes,
            workers=workers,
            compiled=compiled,
            threads=threads,
            accelerator=where,
            has_gpu=lightning_accelerator == "cuda",
        )
        options = RoundOptions(
            clients_per_round=clients_per_round if buffer is None else buffer.size,
            sampler=self.sampler,
            eval_every=eval_every,
            divergence_factor=divergence_factor,
            store_local_models=store_local_models,
            seed=seed,
            request=request,
            clock=clock,
            cloud=cloud,
            buffer=buffer,
            states=states,
        )
        self.loop = FederatedLoop(self, rounds, options, measures)
        self.fit_loop = self.loop

    def fit(  # type: ignore[override]  # data loaders make no sense here
        self, model: LightningModule, datamodule: LightningDataModule | None = None, ckpt_path: str | Path | None = None
    ) -> None:
        """Train; checks everything that can be checked before any work starts.

        Args:
            model: the algorithm: a fedlit Client.
            datamodule: a FederatedDataModule.
            ckpt_path: a checkpoint to continue from; a run folder finds its own with `resume`.
        """
        client, data = checked_parts(model, datamodule)
        fit = Fit(self, client, data, super().fit)
        if not isinstance(self.strategy, FederatedStrategy):
            fit.run(ckpt_path)
            return
        assert self.strategy.launcher is not None
        self.strategy.connect(client)
        self.strategy.launcher.launch(fit.run_as_rank, ckpt_path, trainer=self)

    def use_loop(self, make: Callable[..., FederatedLoop]) -> None:
        """Replace the loop; `make` takes the arguments of FederatedLoop."""
        loop = self.loop
        self.loop = self.fit_loop = make(self, loop.max_epochs, loop.options, loop.measures)

    def save_checkpoint(
        self, filepath: str | Path, weights_only: bool | None = None, storage_options: Any | None = None
    ) -> None:
        """Save a checkpoint, but never of an unfinished round: inside a round it is written at the round's end."""
        save = super().save_checkpoint
        self.loop.state.at_round_end(lambda: save(filepath, bool(weights_only), storage_options))


def quiet_lightning() -> None:
    """Hide Lightning's lines about devices, tips and the like; its warnings are still shown."""
    for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
