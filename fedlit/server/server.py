"""Server: one model, its optimiser, the callbacks that keep its state, and its clients."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedlit.client.cohort import TrainedCohort
from fedlit.client.net_parts import trained_buffers, trained_params
from fedlit.client.states import ClientStates
from fedlit.params import Params, clone
from fedlit.server.base import ServerCallback
from fedlit.server.optimizers import copied, saved, step_all

ABSENT_AT_ONCE = 1024
"""Models that `latest_models` reads at once: all of them may exceed the memory if they are on disk."""
BuildOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Snapshot:
    """The state of a server before a round."""

    model: Params
    clock: dict[str, Any]
    optimizer: dict[str, Any]
    callbacks: list[dict[str, Any]]


class Server:
    """z and everything else that the server keeps; a cloud has several servers.

    Args:
        net: its trained parameters and buffers are copied as z^0; the net itself stays the clients' scratch space.
        build_optimizer: makes the optimiser that moves z along a pseudo-gradient.
        callbacks: server callbacks of the algorithm and the user.
        sizes: (clients,) training samples of each of its clients.
        states: what clients keep between rounds.
        id: its number, from 0 on.
        clients: (clients,) ids of its clients; all clients by default.
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
        """Steps that it has taken; its draws are keyed by this number."""
        self.started = 0.0
        """Simulated seconds at which its current round began."""
        self.waited = 0.0
        """Simulated seconds for which it had its reports and waited for other servers."""
        self.stepped = 0
        """Number of the round of the run in which it last stepped."""
        self.params = {name: nn.Parameter(value) for name, value in clone(trained_params(net)).items()}
        self.buffers = clone(trained_buffers(net))
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
        """A copy of the server's parameters, which later steps do not change."""
        return clone(self.params)

    def bind_storage(self, model: Params) -> None:
        """Use these tensors, which hold the same numbers, as storage of z and its buffers."""
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
        """The model that is measured as the global one: z, unless a callback replaces it (views)."""
        return self._model | self.evaluated_model()

    def evaluated_model(self) -> Params:
        """The parameters that callbacks want measured instead of those of z."""
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

    def for_newcomers(self) -> "Server":
        """This server as a client finds it that comes now: nobody has rows, and the run begins at its present model."""
        server = copy(self)
        server.states, server.initial = ClientStates(), clone({name: self._model[name] for name in self.params})
        return server

    @contextmanager
    def callbacks_restored(self) -> Iterator[None]:
        """After the block, its callbacks keep what they kept before."""
        kept = [copied(callback.state_dict()) for callback in self.callbacks]
        try:
            yield
        finally:
            for callback, state in zip(self.callbacks, kept, strict=True):
                if state:
                    callback.load_state_dict(state)

    def begin_round(self, time_s: float, number: int) -> None:
        """Begin the next round at this simulated time, after a step in the run's round `number`."""
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
        """The state that `restore` needs to undo a round; `model` is a copy of its model, if there is one already."""
        kept = [copied(callback.state_dict()) for callback in self.callbacks]
        model = clone(self._model) if model is None else model
        return Snapshot(model, self.clock, saved(self.optimizer), kept)

    def restore(self, before: Snapshot) -> None:
        """Return to a snapshot. Every part is restored, even if the code of another part raises."""
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
        """z, its clock and its callbacks. Lightning itself saves the optimiser and the first server's callbacks."""
        kept = [callback.state_dict() for callback in self.callbacks] if self.id else []
        return {"model": clone(self._model), "clock": self.clock, "callbacks": kept}

    @property
    def clock(self) -> dict[str, Any]:
        """Its counters and times."""
        return {name: getattr(self, name) for name in ("rounds", "started", "waited", "stepped")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
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
    """Let the optimisers move each z along its pseudo-gradient, and replace its buffers; names in `fixed` stay."""
    for server, gradient in zip(servers, pseudo_gradients, strict=True):
        server.set_gradient(gradient, fixed)
    step_all([server.optimizer for server in servers])
    for server, averaged in zip(servers, buffers, strict=True):
        server.finish_step(averaged, fixed)
