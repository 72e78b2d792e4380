"""Fit: one call of `FederatedTrainer.fit`, around Lightning's loop.

A run is checked, described, given its initial weights and its folder before the first round; after the last, the folder
is completed.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytorch_lightning import Callback
from pytorch_lightning.profilers import Profiler

from fedlit.client.base import Client
from fedlit.client.initial_weights import draw_initial_weights, mark_trained
from fedlit.client.net_parts import frozen, listed
from fedlit.client.states_location import check_asked, why_not_on_disk
from fedlit.data.base import FederatedDataModule
from fedlit.data.partition_plot import draw_partition
from fedlit.engines.processes.strategy import FederatedStrategy
from fedlit.files import write_json, writing
from fedlit.ranks import Ranks
from fedlit.results.config_file import canonical
from fedlit.results.folder import RunFolder
from fedlit.rounds.assembly import simulate_clock
from fedlit.rounds.interrupts import interrupts_go_through
from fedlit.rounds.step_logs import step_logs
from fedlit.server.base import merge_callbacks
from fedlit.server.weights import find_weighting
from fedlit.trainer import adapter_files, frozen_file
from fedlit.trainer.checkpoint import PreloadedCheckpointIO, RunCheckpoint
from fedlit.trainer.configuration_checks import check_run
from fedlit.trainer.description import check_ranks_agree, describe_run, describe_run_as_in_0_1
from fedlit.trainer.protocol_checks import warn_mixing_has_no_effect
from fedlit.trainer.resume import check_resumed, find_resumed, prepare_folder
from fedlit.trainer.summary import versions

if TYPE_CHECKING:
    from fedlit.trainer.trainer import FederatedTrainer

log = logging.getLogger("fedlit")

LightningFit = Callable[..., None]
"""`fit` of Lightning's trainer."""


class Fit:
    """One run of a client on data.

    Args:
        trainer: its loop plays the rounds.
        client: the algorithm.
        data: the data.
        lightning_fit: calls the loop.
    """

    def __init__(
        self, trainer: "FederatedTrainer", client: Client, data: FederatedDataModule, lightning_fit: LightningFit
    ) -> None:
        self.trainer = trainer
        self.loop = trainer.loop
        self.client = client
        self.data = data
        self.lightning_fit = lightning_fit
        self.ranks: Ranks = trainer.loop.ranks

    def run_as_rank(self, ckpt_path: str | Path | None) -> None:
        """Train as one process of several, which end together."""
        trainer = self.trainer
        assert isinstance(trainer.strategy, FederatedStrategy)
        ranks = self.ranks = self.loop.ranks = trainer.strategy.join()
        if not ranks.is_first:
            log.setLevel(logging.WARNING)  # only one rank prints
        with ranks.taking_leave():
            if trainer.local_rank == 0:
                self.data.prepare_data()
            ranks.all_gather(None)  # wait: only one process of a machine downloads
            self.run(ckpt_path)

    def run(self, ckpt_path: str | Path | None) -> None:
        """Train, from the checks to the summary.

        Args:
            ckpt_path: a checkpoint to continue from; a run folder finds its own.
        """
        trainer, client, data, ranks = self.trainer, self.client, self.data, self.ranks
        data.prepare_data()
        data.setup("fit")
        users = self._merge_callbacks()
        self._check()
        given = self._load_weights()  # before the run is described: its frozen weights are a part of what it is
        config = trainer.config or {}
        if not config and (trainer.folder is not None or ranks.size > 1):
            config = describe_run(trainer, client, data, users)
        as_once = None if trainer.config else partial(describe_run_as_in_0_1, trainer, client, data, users)
        if ranks.size > 1:
            check_ranks_agree(ranks.all_gather((json.loads(canonical(config)), versions(), data.partition_hash)))
        if ckpt_path is None:
            self._draw_weights(given)
        ranks.broadcast_tensors(client.net.state_dict())
        folder = trainer.folder if ranks.is_first else None
        with folder.claimed() if folder is not None else nullcontext():
            checkpoint = self._open_folder(folder, config, as_once) if folder is not None else None
            served = client.served_by(self.loop.create_servers)
            with served, self.loop.stop_request.listening(), interrupts_go_through(), self._marking():
                path = ranks.broadcast(checkpoint) or ckpt_path
                self.lightning_fit(client, datamodule=data, ckpt_path=path, weights_only=True)
            if folder is not None:
                self._complete_folder(folder)
            self._show_profile()

    def _merge_callbacks(self) -> list[Callback]:
        """Put the algorithm's callbacks before the user's, which are returned."""
        trainer = self.trainer
        users = [callback for callback in trainer.callbacks if callback not in trainer.algorithms_callbacks]
        trainer.algorithms_callbacks = [*self.client.server_callbacks(), *step_logs(self.client)]
        trainer.callbacks = merge_callbacks(trainer.algorithms_callbacks, users)
        return users

    def _check(self) -> None:
        """Refuse what cannot work, before any work; sets the loop's weighting."""
        trainer, client, data, options = self.trainer, self.client, self.data, self.loop.options
        weighting = find_weighting(client.weighting() if trainer.weights is None else trainer.weights)
        check_run(
            client,
            data,
            trainer.callbacks,
            clients_per_round=options.clients_per_round,
            sampler=options.sampler,
            weighting=weighting,
            measures=self.loop.measures,
            cloud=options.cloud,
            clock=options.clock,
            buffer=options.buffer,
            seed=trainer.seed,
        )
        path = trainer.folder.path if trainer.folder is not None else None
        check_asked(options.states, why_not_on_disk(path, trainer.num_nodes))
        warn_mixing_has_no_effect(client, trainer.server_optimizer, options.cloud)
        if options.clock is not None and options.clock.latency.is_recorded:
            for _ in simulate_clock(client, data, options, trainer.max_epochs or 1):
                pass  # a trace that is too short is found here
        self.loop.weighting = weighting

    def _load_weights(self) -> frozenset[str]:
        """Load the weights of the file that was given; returns the names of its tensors."""
        net, file = self.client.net, self.client.init_from
        if file is None:
            return frozenset()
        loaded = self.ranks.broadcast(sorted(file.load_into(net)) if self.ranks.is_first else [])
        others = [name for name in net.state_dict() if name not in loaded]  # the other ranks get its tensors later
        log.info(f"initial weights: from {file.path}{f'; not in it: {listed(others, 4)}' if others else ''}")
        return frozenset(loaded)

    def _draw_weights(self, given: frozenset[str]) -> None:
        """Draw what is trained, and was not in a file, from the seed; a resumed run has its checkpoint's."""
        net, seed = self.client.net, self.trainer.seed
        if self.trainer.initial_weights == "net" or self.ranks.broadcast(self._has_checkpoint):
            return
        drawn = draw_initial_weights(net, seed, given)
        if drawn:
            which = f" ({listed(drawn, 4)})" if given or frozen(net) else ""
            log.info(f"initial weights: drawn from seed {seed}{which}")

    @property
    def _has_checkpoint(self) -> bool:
        """Whether the run continues from its folder, with the weights of its checkpoint."""
        trainer, folder = self.trainer, self.trainer.folder
        if folder is None or not trainer.resume or trainer.overwrite or not folder.holds_run():
            return False
        return folder.last.exists() or folder.previous.exists()

    @contextmanager
    def _marking(self) -> Iterator[None]:
        """Mark the net as trained at the end of the run, even if it fails."""
        try:
            yield
        finally:
            if self.loop.rounds_done:
                mark_trained(self.client.net)

    def _open_folder(
        self, folder: RunFolder, config: dict[str, Any], as_once: Callable[[], Mapping[str, Any]] | None
    ) -> Path | None:
        """Open the folder for a new or a resumed run; returns the checkpoint's path if there is one."""
        trainer, loop, checkpoint = self.trainer, self.loop, None
        if folder.holds_run() and not trainer.overwrite:
            checkpoint = find_resumed(folder, config, as_once, resume=trainer.resume)
        if checkpoint is not None:
            rounds, request = trainer.max_epochs, loop.options.request
            check_resumed(folder, checkpoint, self.client, self.data, rounds, request, self.ranks.size)
        prepare_folder(folder, config, checkpoint, overwrite=trainer.overwrite)
        saver = next(callback for callback in trainer.callbacks if isinstance(callback, RunCheckpoint))
        saver.frozen = frozen_file.write(folder, self.client.net) if checkpoint is None else checkpoint.frozen
        adapter_files.write_config(folder, self.client.net)
        folder.write_partition(self.data.describe())
        loop.folder = folder
        if checkpoint is None:
            return None
        trainer.strategy.checkpoint_io = PreloadedCheckpointIO(checkpoint)
        return checkpoint.path

    def _complete_folder(self, folder: RunFolder) -> None:
        """Join the client records, and write the picture of the partition and the summary."""
        folder.finish_clients()
        if not folder.partition_picture.exists():
            described = self.data.describe()
            with writing(folder.partition_picture) as draft:
                draw_partition(described, draft)
        write_json(folder.summary, self.trainer.summary)
        folder.close()

    def _show_profile(self) -> None:
        """Log the summary of Lightning's profiler, for every rank."""
        profiler: Profiler = self.trainer.profiler  # type: ignore[attr-defined]  # set by Lightning's constructor
        for rank, summary in enumerate(self.ranks.all_gather(profiler.summary())):
            if summary and self.ranks.is_first:
                log.info(f"rank {rank}: {summary.strip()}" if self.ranks.size > 1 else summary.strip())
