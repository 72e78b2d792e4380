"""Restored: a run from its folder, to use its models again. Nothing is trained here.

The global model is the one that the run evaluated as global, each user's z is that of the user's server, and
`UserModels` makes the users' models, as in the run itself.
"""

from functools import cached_property
from pathlib import Path
from typing import Any, Self

from torch import nn

from fedlit.client.base import Client
from fedlit.client.states import ClientStates
from fedlit.client.step import Personal
from fedlit.data.base import FederatedDataModule
from fedlit.engines.device import Device
from fedlit.errors import RunError, understood
from fedlit.evaluation.evaluator import Evaluator
from fedlit.evaluation.round_evaluator import EvaluationOptions, RoundEvaluator
from fedlit.evaluation.user_models import UserModels
from fedlit.params import Params, at_least_float32, copy_into
from fedlit.results.config_file import read_config
from fedlit.results.folder import RunFolder
from fedlit.trainer import frozen_file
from fedlit.trainer.checkpoint import LoadedCheckpoint, check_fits, find_checkpoint
from fedlit.trainer.net_checks import check_net


class Restored:
    """A run after the last round in its folder.

    Args:
        folder: the run's folder.
        checkpoint: its newest checkpoint.
    """

    def __init__(self, folder: RunFolder, checkpoint: LoadedCheckpoint) -> None:
        self.folder = folder
        self.checkpoint = checkpoint
        self.rounds = checkpoint.rounds
        self._loop: dict[str, Any] = checkpoint.content["loops"]["fit_loop"]
        self.model: Params = {
            name.removeprefix("net."): value
            for name, value in checkpoint.content["state_dict"].items()
            if name.startswith("net.")
        }
        """The global model, under the net's own names, without the frozen part."""
        self.personal = Personal(**self._loop.get("personal", {}))
        self.states = ClientStates()
        with understood(checkpoint.path):
            self.states.load_state_dict(self._loop["clients"], checkpoint.path.parent)

    @classmethod
    def of(cls, path: Path) -> Self:
        """Restore the run in a folder; RunError if there is nothing to restore."""
        folder = RunFolder(path)
        checkpoint = find_checkpoint(folder) if folder.checkpoints.is_dir() else None
        if checkpoint is None:
            raise RunError(f"{path} holds no checkpoint. Give the folder of a run with a finished round.")
        return cls(folder, checkpoint)

    @cached_property
    def frozen(self) -> Params:
        """The frozen part of the net."""
        return frozen_file.read(self.folder, self.checkpoint.frozen)

    @property
    def keeps_local(self) -> bool:
        """Whether the run kept every client's last model."""
        return all(self.states.keeps(f"local.{name}") for name in self.model)

    def server_model(self, user: int) -> Params:
        """z of the server that a user belongs to."""
        servers = self._loop["federation"]["servers"]
        model: Params = servers[self._owners[user] if len(servers) > 1 else 0]["model"]
        return model

    @cached_property
    def _owners(self) -> dict[int, int]:
        """Client -> the index of its server."""
        if "clients" not in self._loop["federation"]:
            raise RunError(
                f"{self.folder.path} was written by an earlier fedlit, whose checkpoints do not say which clients "
                "belong to which of a cloud's servers. Resume the run with a round more "
                f"(--trainer.rounds {self.rounds + 1} --resume): the checkpoint that it then writes does."
            )
        clients = self._loop["federation"]["clients"]
        return {client: server for server, members in enumerate(clients) for client in members.tolist()}

    def personal_models(self) -> dict[int, Params]:
        """Client -> its personal model before any adaptation, for every client that has trained.

        Empty if local models were not kept. It needs neither the algorithm's class nor the data.
        """
        if self.personal.model == "local" and not self.keeps_local:
            return {}
        kept = frozenset(name for name in self.model if self.states.keeps(f"own.{name}"))
        models = UserModels(
            self.server_model,
            self.states,
            personal=self.personal.model,
            local_tensors=kept,
            keeps_local=self.keeps_local,
        )
        return {
            user: {name: value.clone() for name, value in models.personal(user).items()} for user in self.states.touched
        }

    def load_into(self, client: Client, data: FederatedDataModule) -> None:
        """Set up the data, and load the global model into the client's net, in the run's precision."""
        data.prepare_data()
        data.setup("test")
        dtype = next(value.dtype for value in self.model.values() if value.is_floating_point())
        self._load_frozen(client.net)
        client.net.to(dtype)
        data.cast(at_least_float32(dtype))
        check_net(client, data)
        client.prepare()
        check_fits(self.checkpoint, client, data)
        copy_into(client.net, self.model)

    def _load_frozen(self, net: nn.Module) -> None:
        """Give the net the run's frozen part, and let the same parameters train."""
        if self.frozen:
            net.load_state_dict(self.frozen, strict=False)
            for name, value in net.named_parameters():
                value.requires_grad_(name in self.model)

    def evaluator(self, client: Client, data: FederatedDataModule) -> Evaluator:
        """Evaluates the global model, on any data that were passed to `load_into`."""
        return Evaluator(client, data, device=self._device)

    def round_evaluator(
        self, client: Client, data: FederatedDataModule, options: EvaluationOptions | None = None
    ) -> RoundEvaluator:
        """Evaluates the users' models too, if the data's users are those of the run."""
        models = UserModels.of(
            client, self.server_model, self.states, self._loop["initial"], keeps_local=self.keeps_local
        )
        return RoundEvaluator(client, data, models, options or EvaluationOptions(), device=self._device)

    @property
    def _device(self) -> Device:
        trainer = read_config(self.folder.config).get("trainer", {})
        return Device.at_home(trainer.get("init_args", trainer).get("precision", "32-true"))
