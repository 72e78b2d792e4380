"""The coordinator: the ordinary loop, whose servers are processes. It says who steps together, mixes, measures, writes.

It holds a copy of every server (model, optimiser, callbacks) and of what clients keep, as each event left them: so
metrics, checkpoints and the run folder are those of `fedlit fit`, and a run that lost a server can be resumed with all.
"""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from pytorch_lightning import Trainer

from fedlit.clock import Clock, Constant, Latency
from fedlit.cloud_processes.base import ONE_BY_ONE
from fedlit.cloud_processes.crew import Crew, Heard
from fedlit.cloud_processes.latencies import Latencies
from fedlit.cloud_processes.plan import Part
from fedlit.cloud_processes.wire import Message
from fedlit.cohort import Cohort
from fedlit.errors import ProcessError
from fedlit.federation import Event, Federation
from fedlit.gathering import Gathering, RoundOptions
from fedlit.loop import FederatedLoop
from fedlit.measuring import MeasureOptions
from fedlit.server.server import Server, Snapshot
from fedlit.states import ClientStates

log = logging.getLogger("fedlit")


class ServerLostError(Exception):
    """A server was lost within a step: the step is taken back, and taken by others."""


class CoordinatorFederation(Federation):
    """Servers that are processes: an event takes place once they have said that they have their reports.

    Args:
        federation: the coordinator's copies of the servers, with their protocol.
        crew: the processes.
    """

    def __init__(self, federation: Federation, crew: Crew) -> None:
        super().__init__(federation.servers, federation.cloud, federation.seed)
        self.crew = crew
        self.reports: dict[int, Heard] = {}
        """What servers that wait to step have told, by their id."""
        self._answers: dict[int, Message] = {}
        self._lost: dict[int, str] = {}
        self._began = time.perf_counter()

    @property
    def is_real(self) -> bool:
        """Whether whoever is done first steps first; else the clock says who."""
        return self.crew.plan.pace == "real"

    @property
    def present(self) -> list[Server]:
        """Those whose processes are there; where none is, the copies of all, which a last checkpoint holds."""
        return [server for server in self.servers if server.id not in self._lost] or self.servers

    @property
    def left(self) -> int:
        """How many servers are there."""
        return len(self.servers) - len(self._lost)

    @property
    def together(self) -> int:
        """How many must step together."""
        return 1 if self.cloud is None else self.cloud.together

    # ---- who steps ---------------------------------------------------------------------------------------------------

    def next_event(self, gathering: Gathering) -> Event:
        """The servers that step next, once each of them has its reports."""
        while True:
            self._check_enough()
            self.gather(gathering)
            event = self.earliest()
            missing = [server.id for server in event.servers if server.id not in self.reports]
            if not missing:
                return event
            self._hear(missing)

    def gather(self, gathering: Gathering) -> None:
        """As ever; at a real pace, a server that has not told that it is done takes forever."""
        super().gather(gathering)
        for server in self.present if self.is_real else ():
            heard = self.reports.get(server.id)
            self._waiting[server.id].lasts = math.inf if heard is None else self._now(heard.at) - server.started

    def records(self, event: Event) -> dict[str, list[Any]]:
        """As ever; who is still at work ends no earlier than now."""
        rows = super().records(event)
        rows["finish_s"] = [
            now if math.isinf(end) else end for end, now in zip(rows["finish_s"], rows["time_s"], strict=True)
        ]
        return rows

    def unfinished(self) -> list[Cohort]:
        """What servers still wait for, or with, when the run ends; who has not reported takes until now at least."""
        for server in self.present:
            cohort = self._waiting.get(server.id)
            if cohort is not None and math.isinf(cohort.lasts):
                cohort.lasts = self._now(time.perf_counter()) - server.started
        return list(self._waiting.values())

    def _now(self, at: float) -> float:
        return at - self._began

    def _check_enough(self) -> None:
        if self.left < self.together:
            raise ProcessError(
                f"{next(reversed(self._lost.values()))}. {self.together} of {len(self.servers)} servers step together, "
                f"and {self.left} {'is' if self.left == 1 else 'are'} left: the run ends. Continue it from its last "
                "round with --resume."
            )

    # ---- messages ----------------------------------------------------------------------------------------------------

    def begin(self, states: ClientStates) -> None:
        """Tell every server where the run begins."""
        self._began, kept = time.perf_counter() - self.time, states.state_dict()
        for server in self.servers:
            now = server.snapshot()
            slots = [slot for slot, client in enumerate(kept["clients"]) if client in server.members]
            self.crew.send(
                server.id,
                {
                    "model": now.model,
                    "clock": now.clock,
                    "optimizer": now.optimizer,
                    "callbacks": [
                        state for state, own in zip(now.callbacks, server.callbacks, strict=True) if own.decides
                    ],
                    "initial": server.initial,
                    "clients": [kept["clients"][slot] for slot in slots],
                    "rows": {name: value[slots] for name, value in kept["rows"].items()},
                },
            )

    def collect(self, event: Event) -> dict[int, Message]:
        """An answer of each server of an event; where one is lost, the others take the step back."""
        self._answers.clear()
        ids = [server.id for server in event.servers]
        while missing := [id for id in ids if id not in self._answers and id not in self._lost]:
            self._hear(missing)
        if any(id in self._lost for id in ids):
            self.tell([id for id in ids if id not in self._lost], {"undo": True})
            raise ServerLostError
        return self._answers

    def tell(self, servers: Sequence[int], message: Message) -> None:
        """The same message to several servers."""
        for id in servers:
            self.crew.send(id, message)

    def _hear(self, awaited: Sequence[int]) -> None:
        heard = self.crew.hear(awaited)
        if heard.message is None:
            self._lose(heard.part)
        elif "report" in heard.message:
            self.reports[heard.part.server] = heard
        else:
            self._answers[heard.part.server] = heard.message

    def _lose(self, part: Part) -> None:
        """A server goes with its process, and with that of its clients."""
        if part.server in self._lost:
            return
        culprit = self.crew.culprit(part.server)
        whose = "" if culprit.worker is None else f", and with it server {part.server} has lost clients"
        self._lost[part.server] = f"{self.crew.ended(culprit)}{whose}"
        self.reports.pop(part.server, None)
        self._waiting.pop(part.server, None)
        self.crew.dismiss(part.server)
        if self.left >= self.together:
            log.warning(f"{self._lost[part.server]}: the run goes on with {self.left} of {len(self.servers)} servers.")


class CoordinatorLoop(FederatedLoop):
    """Rounds whose servers are processes.

    Args:
        trainer: as for FederatedLoop, and so are `rounds`, `options` and `measures`.
        crew: the processes.
    """

    federation: CoordinatorFederation

    def __init__(
        self,
        trainer: Trainer,
        rounds: int,
        options: RoundOptions,
        measures: MeasureOptions | None = None,
        *,
        crew: Crew,
    ) -> None:
        self.has_clock = options.clock is not None
        is_timed = self.has_clock or crew.plan.pace == "real"
        clock = options.clock or (Clock(Latency(arrival=Constant(0.0))) if is_timed else None)
        super().__init__(trainer, rounds, replace(options, request=ONE_BY_ONE, clock=clock), measures)
        self.crew = crew
        self.latencies = Latencies()

    def open_servers(self) -> list[torch.optim.Optimizer]:
        """Copies of the processes' servers."""
        optimizers = super().open_servers()
        self.federation = CoordinatorFederation(self.federation, self.crew)
        return optimizers

    def on_run_start(self) -> None:
        """The servers begin where this run does, while the initial model is measured."""
        self.federation.begin(self.states)
        super().on_run_start()

    def advance(self) -> None:
        """One round; where a server is lost within it, once more without that one."""
        while True:
            try:
                return super().advance()
            except ServerLostError:
                continue

    def train(self, event: Event, number: int) -> tuple[list[Cohort], Cohort]:
        """What the clients of the servers that are due have brought back."""
        for server, cohort in self.federation.sent(event, number):
            heard = self.federation.reports.pop(server.id)
            assert heard.message is not None
            vars(cohort).update(heard.message["report"])
            self.record(cohort, heard.message["seconds"])
        parts = self.federation.parts(event, number)
        return parts, Cohort.join_trained(parts)

    def step_together(self, event: Event, cohorts: Sequence[Cohort]) -> None:
        """The servers that are due step, each in its process; here they are mixed."""
        federation, number, servers = self.federation, self.rounds_done + 1, event.servers
        ids = [server.id for server in servers]
        federation.tell(ids, {"number": number})
        for _ in range(self.iterations):
            answers = federation.collect(event)
            for server in servers:
                server.load_model(answers[server.id]["model"])
            federation.mix(event)
            for server in servers:
                self.crew.send(server.id, {"model": server.model})
        answers = federation.collect(event)
        for server, cohort in zip(servers, cohorts, strict=True):
            take_over(server, answers[server.id]["stepped"])
            vars(cohort).update(answers[server.id]["cohort"])
        federation.tell(ids, {"count": True})
        self.keep(cohorts)

    def record(self, cohort: Cohort, seconds: list[float]) -> None:
        """How long a server's round took, and each client of it."""
        clock = self.options.clock
        if clock is not None and self.federation.is_real:
            arrivals = clock.latency.arrivals(self.options.seed, cohort.round, cohort.clients)
            self.latencies.add(cohort, arrivals, np.array(seconds))

    def teardown(self) -> None:
        """However the run ends, what it took is written."""
        super().teardown()
        if self._ready and self.folder is not None and self.federation.is_real:
            for cohort in self.federation.unfinished():
                self.record(cohort, [cohort.lasts] * len(cohort.clients))
            self.latencies.write(self.folder, has_clock=self.has_clock)


def take_over(server: Server, became: Message) -> None:
    """A copy becomes what the server's process has become. Callbacks that only watch live here alone."""
    states = iter(became["callbacks"])
    callbacks = [next(states) if callback.decides else {} for callback in server.callbacks]
    server.restore(Snapshot(became["model"], server.clock, became["optimizer"], callbacks))
