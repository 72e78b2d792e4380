"""LightningClient: the members of a client that Lightning calls, and those of Lightning that a local step must not."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.trainer.states import TrainerFn
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn

from fedlit.client.net_parts import frozen_state
from fedlit.errors import ConfigError
from fedlit.inputs import Inputs, call
from fedlit.params import with_prefix


class LightningClient(LightningModule):
    """The part of `Client` that Lightning sees. A local step can neither log nor read the trainer."""

    net: nn.Module
    _is_stepping: bool = False
    """Whether a local step is running."""
    _create_servers: Callable[[], list[torch.optim.Optimizer]] | None = None
    """Creates the servers of the run and returns their optimisers; None outside a run."""

    def forward(self, x: Inputs) -> Tensor:
        """The net's output for x of a batch, so that a Client can be used as a model."""
        output: Tensor = call(self.net, x)
        return output

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Build the client with a checkpoint's z. A checkpoint holds no options: give the net and all others."""
        if "net" not in kwargs:
            raise ConfigError(
                f"{cls.__name__}.load_from_checkpoint needs the net, whose class a checkpoint does not hold: give "
                f"net=… as in the run's config.yaml. `fedlit evaluate RUN` and `fedlit export RUN` need nothing."
            )
        return super().load_from_checkpoint(checkpoint_path, *args, **{"weights_only": True, **kwargs})

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Lightning's hook: the frozen part of the net is not in a run's checkpoints, and stays as it is."""
        checkpoint["state_dict"] = with_prefix("net", frozen_state(self.net)) | checkpoint["state_dict"]

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The server's optimiser over z, which Lightning saves and restores. Do not override it."""
        if self._create_servers is None:
            raise ConfigError(f"{type(self).__name__} has no server yet. Train it with FederatedTrainer.fit.")
        return self._create_servers()

    @contextmanager
    def served_by(self, create_servers: Callable[[], list[torch.optim.Optimizer]]) -> Iterator[None]:
        """Within the block, `configure_optimizers` calls this function, which creates the servers of a run."""
        self._create_servers = create_servers
        try:
            yield
        finally:
            self._create_servers = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy of a client belongs to no run; Lightning drops the trainer of a copy in the same way."""
        return super().__getstate__() | {"_create_servers": None}

    @property
    def trainer(self) -> Trainer:
        """Lightning's trainer, refused inside a local step."""
        if self._is_stepping:
            raise ConfigError(
                "self.trainer (or current_epoch or global_step, which ask it) was read inside a local step. A step may "
                "read its batch, the net, global_params, the states of state_spec() and what the server sent: it is "
                "traced once and run for many clients at a time. Let a server callback write what differs by round "
                "into cohort.sent, and declare it in sent_spec()."
            )
        return super().trainer

    @trainer.setter
    def trainer(self, trainer: Trainer | None) -> None:
        if trainer is not None and trainer.state.fn == TrainerFn.FITTING and not hasattr(trainer, "loop"):
            name = type(self).__name__
            raise ConfigError(
                f"{name} was given to Lightning's own Trainer, which does not know clients and servers. Use fedlit's: "
                f"fedlit.FederatedTrainer(rounds=100).fit({name}(net), datamodule=data)."
            )
        LightningModule.trainer.fset(self, trainer)  # type: ignore[attr-defined]  # a property, to mypy a plain value

    def log(self, *args: Any, **kwargs: Any) -> None:
        """Lightning's log, refused inside a local step."""
        if self._is_stepping:
            raise ConfigError(
                "self.log was called inside a local step. A step is traced once and run for many clients at a time, so "
                "it cannot log. Return the number as 'task' in the step's dict, or add it in a server callback's "
                "on_round_metrics."
            )
        super().log(*args, **kwargs)
