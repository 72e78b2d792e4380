"""Starts the processes of a run: Lightning's launchers, environments and arguments, without its gradient reduction.

This is the only file with protected names of Lightning's launchers (`tests/test_private_names.py` lists them).
"""

import atexit
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import torch.distributed as dist
from pytorch_lightning import Trainer
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.strategies.launchers import _MultiProcessingLauncher, _SubprocessScriptLauncher
from pytorch_lightning.strategies.launchers.subprocess_script import (  # type: ignore[attr-defined]  # not exported
    _basic_subprocess_cmd,
)
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # torch does not list it

from fedlit.client.row_layout import archive, read_archive
from fedlit.engines.processes import children, error_json
from fedlit.engines.processes.connections import Connections
from fedlit.engines.processes.group import RankGroup
from fedlit.engines.processes.monitor import Monitor
from fedlit.engines.processes.rendezvous import FOLDER, RENDEZVOUS, RankInfo, make_private_folder
from fedlit.errors import ConfigError, RankError, require

FORKING = ("ddp_notebook", "ddp_fork")
STRATEGIES = ("auto", "ddp", *FORKING)
_SHARDING = ("fsdp", "deepspeed", "model_parallel", "xla_fsdp")
TORCHRUN = "TORCHELASTIC_RUN_ID"
"""Environment variable that torchrun sets for its processes."""


def find_strategy(devices: int, num_nodes: int, strategy: object, rank_timeout: float) -> "FederatedStrategy | str":
    """The strategy for Lightning's trainer: its own for one process, fedlit's for several."""
    require(rank_timeout > 0, f"trainer.rank_timeout is {rank_timeout}; give seconds above 0.")
    require(devices >= 1, f"trainer.devices is {devices}; give the number of processes on each machine, 1 or more.")
    require(num_nodes >= 1, f"trainer.num_nodes is {num_nodes}; give the number of machines, 1 or more.")
    check_strategy(strategy)
    check_started(devices, num_nodes)
    forks = strategy in FORKING or (strategy == "auto" and hasattr(sys, "ps1"))  # ps1: a notebook has no command
    return "auto" if devices * num_nodes == 1 else FederatedStrategy(rank_timeout, forks=forks)


def check_strategy(strategy: object) -> None:
    """Refuse strategies that split a model or batches: here every process has whole models and trains whole clients."""
    if not isinstance(strategy, str):
        raise ConfigError(
            f"trainer.strategy is a {type(strategy).__name__}, but fedlit makes its own: it divides clients and not "
            "batches. Give the name 'ddp', or leave it out."
        )
    name = strategy.lower()
    if name.startswith(_SHARDING):
        raise ConfigError(
            f"trainer.strategy is {strategy}, which spreads one model's parameters over processes. In a federated run "
            "every client has a whole model, and a process trains whole clients. Give 'ddp', which divides the clients."
        )
    require(
        name in STRATEGIES,
        f"trainer.strategy is {strategy}; give ddp, or leave it out. Every process holds the whole model and trains "
        "its part of the clients.",
    )


def check_started(devices: int, num_nodes: int) -> None:
    """Refuse another number of processes than torchrun has already started."""
    started = int(os.environ.get("WORLD_SIZE", "1")) if TORCHRUN in os.environ else None
    if started is not None and started != devices * num_nodes:
        raise ConfigError(
            f"torchrun started {started} processes, but trainer.devices × trainer.num_nodes is {devices} × "
            f"{num_nodes}. Give as trainer.devices what torchrun has as --nproc-per-node, and as "
            "trainer.num_nodes what it has as --nnodes."
        )


class FederatedStrategy(DDPStrategy):
    """Lightning's DDP without its wrapper around the model: ranks exchange clients' rows, not gradients.

    Args:
        rank_timeout: seconds without a sign of progress after which a rank is given up.
        forks: whether further processes are copies of this one, instead of the same command once more.
    """

    def __init__(self, rank_timeout: float, *, forks: bool = False) -> None:
        patience = timedelta(seconds=max(rank_timeout, 60.0))
        super().__init__(process_group_backend="gloo", timeout=patience)
        self.rank_timeout, self.forks = rank_timeout, forks
        self.patience = patience
        self.ranks: RankGroup | None = None

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        if self.forks:
            self._launcher = RankForker(self)
        else:
            self._launcher = RankLauncher(self.cluster_environment, self.num_processes, self.num_nodes)

    def join(self) -> RankGroup:
        """Join the other ranks, again for every run of the same processes."""
        self.ranks = None
        self.setup_environment()
        assert self.ranks is not None
        return self.ranks

    def setup_distributed(self) -> None:
        """Make the rank group once all ranks joined; torch's process group is for calls by Lightning and the user."""
        self.set_world_ranks()
        if self.ranks is not None:
            return
        store, members = RENDEZVOUS.meet(self._rank_info(), self._check_children)
        monitor = Monitor(store, members, self.global_rank, self.rank_timeout)
        monitor.start()
        try:
            self.ranks = RankGroup(monitor, Connections(store, monitor), self.num_processes)
            if not dist.is_initialized():
                rank, size, store = self.global_rank, self.world_size, PrefixStore("torch", store)
                dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=self.patience)
        except RuntimeError as error:
            raise monitor.explain(error) from None

    def _rank_info(self) -> RankInfo:
        environment = self.cluster_environment
        assert environment is not None
        where = environment.main_address, environment.main_port
        return RankInfo(self.global_rank, self.world_size, self.num_nodes, *where)

    def _check_children(self) -> None:
        if isinstance(self.launcher, RankLauncher):
            self.launcher.check_children()

    def configure_ddp(self) -> None:
        """Do nothing: there are no gradients to reduce."""

    def barrier(self, name: str | None = None, *args: Any, **kwargs: Any) -> None:
        """Wait for all ranks, except at a checkpoint, which the first rank writes while the others go on."""
        if self.ranks is not None and name != "Trainer.save_checkpoint":
            self.ranks.all_gather(None)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """The value of rank `src`: plain data, or a path."""
        return obj if self.ranks is None else self.ranks.all_gather(obj if self.global_rank == src else None)[src]

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Reduce over all ranks, after all have come to this call."""
        if self.ranks is None or not isinstance(tensor, Tensor):
            return super().reduce(tensor, group, reduce_op)
        self.ranks.all_gather(None)
        try:
            return super().reduce(tensor, group, reduce_op)
        except RuntimeError as error:
            raise self.ranks.monitor.explain(error) from None

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """The first rank reads and sends it: machines need not share a folder."""
        assert self.ranks is not None
        checkpoint = super().load_checkpoint(checkpoint_path, weights_only) if self.global_rank == 0 else None
        return self.ranks.broadcast_checkpoint(checkpoint)


class RankLauncher(_SubprocessScriptLauncher):
    """Lightning's launcher, which runs the same command again for each further rank of this machine.

    It has no observer: Lightning's silently kills all processes when one ends; here the others know why, and end
    themselves.
    """

    started: ClassVar[list["subprocess.Popen[bytes]"]] = []
    """The further ranks of this machine, in order; they take part in every run of this process."""

    def launch(self, function: Callable[..., Any], *args: Any, trainer: Trainer | None = None, **kwargs: Any) -> Any:
        """Start the processes, unless torchrun or SLURM did, and call the function."""
        try:
            self.cluster_environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        except ValueError as error:  # SLURM started another number
            raise ConfigError(" ".join(str(error).split())) from error
        if not self.cluster_environment.creates_processes_externally:
            self._start_children()
            atexit.register(self.end_children)
        return function(*args, **kwargs)

    def _start_children(self) -> None:
        """Start the processes as Lightning does, but so that none outlives this process."""
        environment = self.cluster_environment
        os.environ |= {
            "MASTER_ADDR": environment.main_address,
            "MASTER_PORT": str(environment.main_port),
            "NODE_RANK": str(environment.node_rank()),
            "LOCAL_RANK": str(environment.local_rank()),
            "WORLD_SIZE": str(self.num_processes * self.num_nodes),
        }
        if self.num_nodes == 1:
            make_private_folder()
        command = [sys.executable, "-I", "-S", children.__file__, str(os.getpid()), *_basic_subprocess_cmd()]
        for rank in range(1, self.num_processes):
            self.started.append(subprocess.Popen(command, env=os.environ | {"LOCAL_RANK": str(rank)}))

    def check_children(self) -> None:
        """Raise an error if a rank has ended before it joined."""
        for rank, child in enumerate(self.started, start=1):
            if child.poll() is not None:
                self.end_children(patience=0)
                ending = children.ending_of(child.returncode)
                raise RankError(
                    f"Rank {rank} of this machine (process {child.pid}) {ending} before the run began. Its output is "
                    "above."
                )

    def end_children(self, patience: float = 10.0) -> None:
        """Wait for the started processes; kill those that do not end in time."""
        children.end_children(self.started, patience)


class RankForker(_MultiProcessingLauncher):
    """Lightning's launcher for notebooks: ranks are forks of this process, which waits and takes their results."""

    def __init__(self, strategy: FederatedStrategy) -> None:
        super().__init__(strategy, start_method="fork")
        self._main = os.getpid()

    def launch(self, function: Callable[..., Any], *args: Any, trainer: Trainer | None = None, **kwargs: Any) -> Any:
        """Fork, and call the function in every fork; inside a fork, only call it."""
        if os.getpid() != self._main:
            return function(*args, **kwargs)
        make_private_folder()
        outcome = super().launch(partial(outcome_of, function), *args, trainer=trainer, **kwargs)
        del os.environ[FOLDER]
        if isinstance(outcome, dict):
            raise error_json.from_json(outcome)
        return outcome

    def get_extra_results(self, trainer: Trainer) -> dict[str, Any]:
        """The run's results for the waiting process; as bytes, because shared tensors would end with this process."""
        results = trainer.results() if trainer.state.finished else None  # type: ignore[attr-defined]  # FederatedTrainer's
        return super().get_extra_results(trainer) | {"fedlit": archive(results)}

    def update_main_process_results(self, trainer: Trainer, extra: dict[str, Any]) -> None:
        """Load the results that the first rank sent."""
        super().update_main_process_results(trainer, extra)
        results = read_archive(extra["fedlit"])
        if results is not None:
            trainer.adopt(results)  # type: ignore[attr-defined]  # FederatedTrainer's


def outcome_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function in a fork that does not outlive its parent; an error is returned as plain data."""
    children.set_death_signal(signal.SIGKILL)
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return error_json.to_json(error, "Another process raised it.")
