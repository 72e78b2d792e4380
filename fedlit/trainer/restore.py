"""Restored: a run as its folder holds it, for whoever reads its models again. Nothing is trained here.

The global model is the one that was measured as such, each user's z is that of the user's own server, and the users'
models are put together by `UserModels`, as in the run itself.
"""

from functools import cached_property
from pathlib import Path
from typing import Any, Self

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
from fedlit.trainer.checkpoint import LoadedCheckpoint, check_fits, find_checkpoint
from fedlit.trainer.configuration_checks import check_net


class Restored:
    """A run after the last round that its folder holds.

    Args:
        folder: the run's folder.
        found: its newest checkpoint.
    """

    def __init__(self, folder: RunFolder, found: LoadedCheckpoint) -> None:
        self.folder = folder
        self.found = found
        self.rounds = found.rounds
        self._loop: dict[str, Any] = found.content["loops"]["fit_loop"]
        self.model: Params = {
            name.removeprefix("net."): value
            for name, value in found.content["state_dict"].items()
            if name.startswith("net.")
        }
        """What is measured as global, under the net's own names."""
        self.personal = Personal(**self._loop.get("personal", {}))
        self.states = ClientStates()
        with understood(found.path):
            self.states.load_state_dict(self._loop["clients"], found.path.parent)

    @classmethod
    def of(cls, path: Path) -> Self:
        """From its folder; RunError where there is nothing to restore."""
        folder = RunFolder(path)
        found = find_checkpoint(folder) if folder.checkpoints.is_dir() else None
        if found is None:
            raise RunError(f"{path} holds no checkpoint. Give the folder of a run with a finished round.")
        return cls(folder, found)

    @property
    def keeps_local(self) -> bool:
        """Whether every client's last model is there."""
        return all(self.states.keeps(f"local.{name}") for name in self.model)

    def server_model(self, user: int) -> Params:
        """z of the server that a user belongs to."""
        servers = self._loop["federation"]["servers"]
        model: Params = servers[self._owners[user] if len(servers) > 1 else 0]["model"]
        return model

    @cached_property
    def _owners(self) -> dict[int, int]:
        """Client -> its server's place."""
        if "clients" not in self._loop["federation"]:
            raise RunError(
                f"{self.folder.path} was written by an earlier fedlit, whose checkpoints do not say which clients "
                "belong to which of a cloud's servers. Resume the run with a round more "
                f"(--trainer.rounds {self.rounds + 1} --resume): the checkpoint that it then writes does."
            )
        clients = self._loop["federation"]["clients"]
        return {client: place for place, own in enumerate(clients) for client in own.tolist()}

    def personal_models(self) -> dict[int, Params]:
        """Client -> its personal model before any adaptation, for every client that has trained; none where not kept.

        It needs neither the client nor the data.
        """
        if self.personal.model == "local" and not self.keeps_local:
            return {}
        own = frozenset(name for name in self.model if self.states.keeps(f"own.{name}"))
        models = UserModels(
            self.server_model,
            self.states,
            personal=self.personal.model,
            local_tensors=own,
            keeps_local=self.keeps_local,
        )
        return {
            user: {name: value.clone() for name, value in models.personal(user).items()} for user in self.states.touched
        }

    def load_into(self, client: Client, data: FederatedDataModule) -> None:
        """Set up the data, and give the client's net the global model, in the numbers of the run."""
        data.prepare_data()
        data.setup("test")
        dtype = next(value.dtype for value in self.model.values() if value.is_floating_point())
        client.net.to(dtype)
        data.cast(at_least_float32(dtype))
        check_net(client, data)
        client.prepare()
        check_fits(self.found, client, data)
        copy_into(client.net, self.model)

    def evaluator(self, client: Client, data: FederatedDataModule) -> Evaluator:
        """Measures the global model, on any data that were given to `load_into`."""
        return Evaluator(client, data, device=self._device)

    def round_evaluator(self, client: Client, data: FederatedDataModule) -> RoundEvaluator:
        """Measures the users' models too, where the data's users are those of the run."""
        models = UserModels.of(
            client, self.server_model, self.states, self._loop["initial"], keeps_local=self.keeps_local
        )
        return RoundEvaluator(client, data, models, EvaluationOptions(), device=self._device)

    @property
    def _device(self) -> Device:
        trainer = read_config(self.folder.config).get("trainer", {})
        return Device.at_home(trainer.get("init_args", trainer).get("precision", "32-true"))
