"""Server: one model, the optimiser that moves it, the callbacks that keep its state, and the clients it works with."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedlit.client.cohort import TrainedCohort
from fedlit.client.states import ClientStates
from fedlit.params import Params, clone
from fedlit.server.base import ServerCallback
from fedlit.server.optimizers import copied, saved, step_all

ABSENT_AT_ONCE = 1024
"""Models that a mean over all clients reads at once; they may be on disk, and more than the memory holds."""
BuildOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Snapshot:
    """What a server was before a round."""

    model: Params
    clock: dict[str, Any]
    optimizer: dict[str, Any]
    callbacks: list[dict[str, Any]]


class Server:
    """z and all that the server keeps; a federation has one, a cloud several.

    Args:
        net: its parameters and buffers are z^0; the net itself stays the clients' scratch space.
        build_optimizer: gives the optimiser that moves z along a pseudo-gradient.
        callbacks: what the algorithm, and the user, let the server do.
        sizes: (clients,) training samples of each of its clients.
        states: what clients keep between rounds.
        id: its number, from 0 on.
        clients: (clients,) who belongs to it; everyone unless given.
    """

    def __init__(
        self,
        net: nn.Module,
        build_optimizer: BuildOptimizer,
        callbacks: Sequence[ServerCallback],
        *,
        sizes: Tensor,
        states: ClientStates,
        id: int = 0,
        clients: np.ndarray | None = None,
    ) -> None:
        self.id = id
        self.clients = np.arange(len(sizes)) if clients is None else clients
        self.members = frozenset(self.clients.tolist())
        self.rounds = 0
        """Steps that it has taken: the key of its draws."""
        self.started = 0.0
        """Simulated seconds at which its current round began."""
        self.waited = 0.0
        """Simulated seconds that it has had its reports and waited for other servers."""
        self.stepped = 0
        """Number of the round of the run in which it last stepped."""
        self.params = {name: nn.Parameter(value) for name, value in clone(dict(net.named_parameters())).items()}
        self.buffers = clone(dict(net.named_buffers()))
        self.bind_storage({name: value.detach() for name, value in (self.params | self.buffers).items()})
        self.initial = clone(self.params)
        self.optimizer = build_optimizer(self.params.values())
        self.callbacks = list(callbacks)
        for callback in self.callbacks:
            callback._server = self
        self.sizes = sizes
        self.states = states

    @property
    def z(self) -> Params:
        """The server's parameters, copied: nobody who reads them can move them, nor sees them move."""
        return clone(self.params)

    def bind_storage(self, model: Params) -> None:
        """Use these tensors as storage of z and its buffers; they hold the same numbers."""
        self._model = model
        for name, parameter in self.params.items():
            parameter.data = model[name]
        self.buffers = {name: model[name] for name in self.buffers}

    @property
    def model(self) -> Params:
        """z and its buffers (views)."""
        return self._model.copy()

    @property
    def global_model(self) -> Params:
        """What is measured as the global model: z, unless a callback has another (views)."""
        return self._model | self.evaluated_model()

    def evaluated_model(self) -> Params:
        """What callbacks put in the place of z where it is measured."""
        model: Params = {}
        for callback in self.callbacks:
            model |= callback.evaluated_model()
        return model

    def set_gradient(self, pseudo_gradient: Params, fixed: frozenset[str]) -> None:
        """Set `.grad` to the pseudo-gradient, and to zero for names in `fixed`."""
        for name, parameter in self.params.items():
            gradient = torch.zeros_like(parameter) if name in fixed else pseudo_gradient[name]
            parameter.grad = gradient if gradient.dtype == parameter.dtype else gradient.to(parameter.dtype)

    def finish_step(self, buffers: Params, fixed: frozenset[str]) -> None:
        """After the optimiser's step: clear `.grad`, and replace the buffers but for those in `fixed`."""
        for parameter in self.params.values():
            parameter.grad = None
        for name, buffer in self.buffers.items():
            if name not in fixed:
                buffer.copy_(buffers[name])

    def begin_round(self, time_s: float, number: int) -> None:
        """It has stepped, in the run's round of this number; its next round begins at this simulated time."""
        self.rounds += 1
        self.started, self.stepped = time_s, number

    def latest_models(self, cohort: TrainedCohort, state: str = "local") -> Params:
        """The mean of the last models of ALL clients, this round's included; z^0 for those that never trained."""
        current = cohort.params if state == "local" else cohort.model(state)
        states, present = self.states, set(cohort.clients)
        absent = [client for client in states.touched if client in self.members and client not in present]
        never = cohort.population - len(absent) - len(present)
        total = {name: value.double().sum(0) + never * self.initial[name].double() for name, value in current.items()}
        for first in range(0, len(absent), ABSENT_AT_ONCE):
            rows = states.kept([f"{state}.{name}" for name in current], absent[first : first + ABSENT_AT_ONCE])
            total = {name: value + rows[f"{state}.{name}"].double().sum(0) for name, value in total.items()}
        return {name: (total[name] / cohort.population).to(value.dtype) for name, value in current.items()}

    def snapshot(self, model: Params | None = None) -> Snapshot:
        """What `restore` needs to undo a round; `model` is a copy of its own, where there is one already."""
        kept = [copied(callback.state_dict()) for callback in self.callbacks]
        model = clone(self._model) if model is None else model
        return Snapshot(model, self.clock, saved(self.optimizer), kept)

    def restore(self, before: Snapshot) -> None:
        """Back to the end of the last finished round; each part is, even if another's own code raises."""
        self.load_model(before.model)
        vars(self).update(before.clock)
        with ExitStack() as steps:
            for callback, state in zip(self.callbacks, before.callbacks, strict=True):
                if state:
                    steps.callback(callback.load_state_dict, state)
            steps.callback(self.optimizer.load_state_dict, before.optimizer)

    def load_model(self, model: Params) -> None:
        """Copy z and its buffers from these tensors."""
        with torch.no_grad():
            for name, value in self._model.items():
                value.copy_(model[name])

    def state_dict(self) -> dict[str, Any]:
        """z and its clock; Lightning saves the optimiser, and the first server's callbacks, which are the trainer's."""
        kept = [callback.state_dict() for callback in self.callbacks] if self.id else []
        return {"model": clone(self._model), "clock": self.clock, "callbacks": kept}

    @property
    def clock(self) -> dict[str, Any]:
        """Its counters and times."""
        return {name: getattr(self, name) for name in ("rounds", "started", "waited", "stepped")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse."""
        self.load_model(state["model"])
        vars(self).update(state["clock"])
        for callback, kept in zip(self.callbacks, state["callbacks"], strict=bool(self.id)):
            callback.load_state_dict(kept)


def move(
    servers: Sequence[Server],
    pseudo_gradients: Sequence[Params],
    buffers: Sequence[Params],
    *,
    fixed: frozenset[str] = frozenset(),
) -> None:
    """Optimisers move each z along its pseudo-gradient, its buffers are replaced; what is `fixed` stays."""
    for server, gradient in zip(servers, pseudo_gradients, strict=True):
        server.set_gradient(gradient, fixed)
    step_all([server.optimizer for server in servers])
    for server, own in zip(servers, buffers, strict=True):
        server.finish_step(own, fixed)
