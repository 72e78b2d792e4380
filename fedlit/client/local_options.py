"""LocalOptions: the options of a client's local training, and what follows from them.

Which are refused, which tensors stay with the client, how many steps are planned.
"""

import logging
from collections.abc import Collection
from functools import cached_property
from typing import Literal

import numpy as np
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedlit.client.local_optimizers import OPTION_DEFAULTS, LocalKind
from fedlit.client.net_parts import batch_norms, trained
from fedlit.client.user_module import UserModule
from fedlit.errors import ConfigError, require
from fedlit.params import Params

log = logging.getLogger("fedlit")

_OF_OPTIMIZERS = {"lr": 0.01, "optimizer": "sgd", **OPTION_DEFAULTS}
"""Options of a local optimiser, each with its default."""


class LocalOptions:
    """The part of `Client` that holds its local options; the client's constructor says what each of them means."""

    net: nn.Module
    lr: float
    optimizer: LocalKind
    momentum: float
    extrapolation: float
    box: float | None
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    l2: float
    clip: float | None
    batch_size: int
    local_epochs: int
    local_steps: int | None
    most_steps: int | None
    local_unit: Literal["step", "epoch"]
    lr_decay: float
    drop_last: bool
    keep_optimizer: bool
    keep_local: str
    average_kept: bool

    user_module: UserModule | None
    """The LightningModule that was given as module."""

    def read_module_options(self) -> None:
        """Take the local optimiser from the module's configure_optimizers, unless an option of it was given."""
        if self.user_module is None:
            return
        changed = [name for name, default in _OF_OPTIMIZERS.items() if getattr(self, name) != default]
        if changed:
            given = ", ".join(f"{name} {getattr(self, name)}" for name in changed)
            log.info(f"local optimiser: {given}; {self.user_module.name}.configure_optimizers is not read")
            return
        options = self.user_module.local_options()
        for name, value in options.items():
            setattr(self, name, value)
        if options:
            told = ", ".join(f"{name} {value}" for name, value in options.items() if name != "optimizer")
            log.info(f"local optimiser: {self.optimizer} ({told}), from {self.user_module.name}.configure_optimizers")

    def check_local_options(self) -> None:
        """ConfigError for the first local option that is out of range or contradicts another."""
        require(self.lr > 0, f"model.lr is {self.lr}, but a learning rate must be above 0.")
        require(
            0 <= self.momentum < 1,
            f"model.momentum is {self.momentum}; give a number from 0 up to, but not including, 1.",
        )
        require(
            0 <= self.extrapolation < 1, f"model.extrapolation is {self.extrapolation}; give 0 or more and below 1."
        )
        require(self.box is None or self.box > 0, f"model.box is {self.box}; give a number above 0, or none.")
        require(self.eps > 0, f"model.eps is {self.eps}; give a number above 0.")
        require(self.weight_decay >= 0, f"model.weight_decay is {self.weight_decay}; give 0 or more.")
        require(self.l2 >= 0, f"model.l2 is {self.l2}; give 0 or more.")
        require(self.clip is None or self.clip > 0, f"model.clip is {self.clip}; give a norm above 0, or leave it out.")
        require(self.batch_size >= 1, f"model.batch_size is {self.batch_size}; a batch has at least 1 row.")
        require(self.local_epochs >= 1, f"model.local_epochs is {self.local_epochs}; give 1 or more.")
        require(
            self.local_steps is None or self.local_steps >= 1,
            f"model.local_steps is {self.local_steps}; give 1 or more.",
        )
        require(
            self.most_steps is None or self.most_steps >= 1, f"model.most_steps is {self.most_steps}; give 1 or more."
        )
        require(
            self.local_unit == "step" or self.local_steps is None,
            "model.local_unit is 'epoch', so K_i counts epochs, but model.local_steps is given. Leave one out.",
        )
        require(
            self.local_unit == "step" or self.most_steps is not None,
            "model.local_unit is 'epoch', the unit of the K_i that model.most_steps draws, but no most_steps is given. "
            "Give it, or leave local_unit out: local_epochs is the same number for all.",
        )
        require(0 < self.lr_decay <= 1, f"model.lr_decay is {self.lr_decay}; give a factor above 0 and at most 1.")

    def check_kept_tensors(self) -> None:
        """ConfigError if `keep_local` names nothing, or a tensor that is frozen."""
        if self.keep_local == "none" or self._kept_of(trained(self.net)):
            return
        names = self._kept_of(self.net.state_dict())
        require(
            not names,
            f"model.keep_local is '{self.keep_local}', but that part of the net is frozen: it is the same for "
            f"everybody, and no client trains '{min(names, default='')}'. Keep a part that is trained, or add this one "
            "to model.train.",
        )
        raise ConfigError(
            f"model.keep_local is '{self.keep_local}', but the net has no such tensors. Give none, norm, all, or the "
            f"name of a module or tensor such as {list(self.net.state_dict())[-1]}."
        )

    def shared(self, params: Params) -> Params:
        """These parameters without those that stay with the client, which no term ties to the server."""
        return {name: value for name, value in params.items() if name not in self.local_tensors}

    @cached_property
    def local_tensors(self) -> frozenset[str]:
        """Names of the parameters and buffers that stay with each client (`keep_local`)."""
        return self._kept_of(trained(self.net))

    def _kept_of(self, names: Collection[str]) -> frozenset[str]:
        """Those of these tensors that `keep_local` names."""
        if self.keep_local == "norm":
            norms = [name for name, module in self.net.named_modules() if isinstance(module, _BatchNorm)]
            return frozenset(name for name in names if name.rpartition(".")[0] in norms)
        prefixes = {"none": (), "all": ("",)}.get(self.keep_local, (f"{self.keep_local}.", self.keep_local))
        return frozenset(name for name in names if name.startswith(prefixes[:1]) or name in prefixes)

    @property
    def own_tensors(self) -> frozenset[str]:
        """The older name of `local_tensors`."""
        return self.local_tensors

    @cached_property
    def model_numbers(self) -> int:
        """How many numbers a model that is sent has: what is trained without the tensors that stay with the client."""
        tensors = trained(self.net)
        return sum(value.numel() for name, value in tensors.items() if name not in self.local_tensors)

    def planned_steps(self, sizes: np.ndarray) -> np.ndarray:
        """(clients,) local steps that the options plan for clients of these sizes."""
        batches = self.batches_per_epoch(sizes)
        if self.local_steps is not None:
            return np.where(batches > 0, self.local_steps, 0)
        return batches * self.local_epochs

    def batches_per_epoch(self, sizes: np.ndarray) -> np.ndarray:
        """(clients,) mini-batches in a pass over the data; with BatchNorm a last batch of one row is left out."""
        full, ragged = np.divmod(sizes, self.batch_size)
        ragged_counts = (ragged >= self.fewest_rows) & ~(self.drop_last & (full > 0))
        return np.asarray(full + ragged_counts)

    @cached_property
    def fewest_rows(self) -> int:
        """Fewest rows of a batch: BatchNorm that is trained needs two for its statistics."""
        return 2 if batch_norms(self.net) else 1

    def rate(self, round: int) -> float:
        """The local learning rate of a round."""
        return float(self.lr * self.lr_decay**round)
