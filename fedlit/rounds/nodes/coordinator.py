"""The coordinator: the ordinary loop with servers that are processes. It decides who steps, mixes, measures and writes.

After each event it holds a copy of every server (model, optimiser, callbacks) and of what clients keep. So metrics,
checkpoints and the run folder are those of `fedlit fit`, and a run that lost a server can be resumed with all servers.
"""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pytorch_lightning import Trainer

from fedlit.client.cohort import C, Cohort, TrainedCohort, WeighedCohort
from fedlit.client.messages import Message
from fedlit.client.states import ClientStates
from fedlit.clock import Clock, Constant, Latency
from fedlit.errors import ProcessError
from fedlit.evaluation.round_evaluator import EvaluationOptions
from fedlit.rounds.cloud import CloudProtocol
from fedlit.rounds.federation import Federation
from fedlit.rounds.gathering import Gatherer, RoundOptions
from fedlit.rounds.loop import FederatedLoop
from fedlit.rounds.nodes.base import ONE_BY_ONE
from fedlit.rounds.nodes.measured_latency import Latencies
from fedlit.rounds.nodes.plan import NodeProcess
from fedlit.rounds.nodes.supervisor import Heard, Supervisor
from fedlit.rounds.protocol import Event, ServerRecords
from fedlit.rounds.round import Round
from fedlit.server.cloud import Cloud
from fedlit.server.server import Server, Snapshot

log = logging.getLogger("fedlit")


class ServerLostError(Exception):
    """A server was lost during a step: the step is undone, and repeated without that server."""


class CoordinatorProtocol(CloudProtocol):
    """Servers that are processes: an event happens once each of its servers has sent its report.

    Args:
        federation: the coordinator's copies of the servers.
        cloud: which of them step together, and how they mix.
        seed: seed of the run.
        supervisor: the processes.
    """

    def __init__(self, federation: Federation, cloud: Cloud, seed: int, supervisor: Supervisor) -> None:
        super().__init__(federation, cloud, seed)
        self.supervisor = supervisor
        self.reports: dict[int, Heard] = {}
        """The reports of servers that wait to step, by their id."""
        self._answers: dict[int, Message] = {}
        self._lost: dict[int, str] = {}
        self._began = time.perf_counter()

    @property
    def is_real(self) -> bool:
        """Whether real times decide which servers step first; else the simulated clock does."""
        return self.supervisor.plan.pace == "real"

    @property
    def active_servers(self) -> list[Server]:
        """The servers whose processes run. If none does, the copies of all servers, for the last checkpoint."""
        return [server for server in self.servers if server.id not in self._lost] or self.servers

    @property
    def remaining(self) -> int:
        """How many servers still run."""
        return len(self.servers) - len(self._lost)

    # ---- who steps ---------------------------------------------------------------------------------------------------

    def next_event(self, gatherer: Gatherer) -> Event:
        """The servers that step next, once each of them has sent its report."""
        while True:
            self._check_enough()
            self.gather(gatherer)
            event = self.earliest()
            missing = [server.id for server in event.servers if server.id not in self.reports]
            if not missing:
                return event
            self._hear(missing)

    def gather(self, gatherer: Gatherer) -> None:
        """As in the base. At a real pace, the duration of a server that has not reported yet is infinite."""
        super().gather(gatherer)
        for server in self.active_servers if self.is_real else ():
            heard = self.reports.get(server.id)
            self.waiting[server.id].duration_s = math.inf if heard is None else self._now(heard.at) - server.started

    def records(self, event: Event) -> ServerRecords:
        """As in the base; a server that still trains gets the current time as finish."""
        rows = super().records(event)
        rows["finish_s"] = [
            now if math.isinf(end) else end for end, now in zip(rows["finish_s"], rows["time_s"], strict=True)
        ]
        return rows

    def unfinished(self) -> list[Cohort]:
        """Cohorts with which no server has stepped when the run ends; those without a report last until now."""
        for server in self.active_servers:
            cohort = self.waiting.get(server.id)
            if cohort is not None and math.isinf(cohort.duration_s):
                cohort.duration_s = self._now(time.perf_counter()) - server.started
        return list(self.waiting.values())

    def _now(self, at: float) -> float:
        return at - self._began

    def _check_enough(self) -> None:
        if self.remaining < self.servers_per_step:
            raise ProcessError(
                f"{next(reversed(self._lost.values()))}. {self.servers_per_step} of {len(self.servers)} servers step "
                f"together, and {self.remaining} {'is' if self.remaining == 1 else 'are'} left: the run ends. Continue "
                "it from its last round with --resume."
            )

    # ---- messages ----------------------------------------------------------------------------------------------------

    def begin(self, states: ClientStates) -> None:
        """Send every server the state with which the run begins."""
        self._began, kept = time.perf_counter() - self.time, states.state_dict()
        for server in self.servers:
            current = server.snapshot()
            slots = [slot for slot, client in enumerate(kept["clients"]) if client in server.members]
            self.supervisor.send(
                server.id,
                {
                    "model": current.model,
                    "clock": current.clock,
                    "optimizer": current.optimizer,
                    "callbacks": [
                        state
                        for state, callback in zip(current.callbacks, server.callbacks, strict=True)
                        if callback.decides
                    ],
                    "initial": server.initial,
                    "clients": [kept["clients"][slot] for slot in slots],
                    "rows": {name: value[slots] for name, value in kept["rows"].items()},
                },
            )

    def collect(self, event: Event) -> dict[int, Message]:
        """An answer from each server of an event; ServerLostError, after the others undo the step, if one is lost."""
        self._answers.clear()
        ids = [server.id for server in event.servers]
        while missing := [id for id in ids if id not in self._answers and id not in self._lost]:
            self._hear(missing)
        if any(id in self._lost for id in ids):
            self.send_all([id for id in ids if id not in self._lost], {"undo": True})
            raise ServerLostError
        return self._answers

    def send_all(self, servers: Sequence[int], message: Message) -> None:
        """Send the same message to several servers."""
        for id in servers:
            self.supervisor.send(id, message)

    def _hear(self, awaited: Sequence[int]) -> None:
        heard = self.supervisor.hear(awaited)
        if heard.message is None:
            self._lose(heard.part)
        elif "report" in heard.message:
            self.reports[heard.part.server] = heard
        else:
            self._answers[heard.part.server] = heard.message

    def _lose(self, part: NodeProcess) -> None:
        """Remove the server of a process that has ended, and end its other processes."""
        if part.server in self._lost:
            return
        culprit = self.supervisor.culprit(part.server)
        whose = "" if culprit.worker is None else f", and with it server {part.server} has lost clients"
        self._lost[part.server] = f"{self.supervisor.ended(culprit)}{whose}"
        self.reports.pop(part.server, None)
        self.waiting.pop(part.server, None)
        self.supervisor.dismiss(part.server)
        if self.remaining >= self.servers_per_step:
            log.warning(
                f"{self._lost[part.server]}: the run goes on with {self.remaining} of {len(self.servers)} servers."
            )


class OneServerProtocol(CoordinatorProtocol):
    """One server that is a process; its metrics and checkpoints are those of a flat run."""

    def metrics(self) -> dict[str, float]:
        """No metrics: one server has no distance to others and waits for none."""
        return {}

    def records(self, event: Event) -> ServerRecords:
        """No records, as in a flat run."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """As in a flat run, which has no rounds of the rigorous protocol."""
        return super().state_dict() | {"formed": 0}


class CoordinatorRound(Round):
    """A round whose servers are processes."""

    host: "CoordinatorLoop"

    @property
    def protocol(self) -> CoordinatorProtocol:
        """The processes, and copies of their servers."""
        return self.host.federation

    def train(self, event: Event, number: int) -> list[TrainedCohort]:
        """The trained cohorts that the due servers have reported."""
        trained = []
        for server, gathered in event.to_send():
            gathered.run_round = number
            heard = self.protocol.reports.pop(server.id)
            assert heard.message is not None
            trained.append(with_fields(TrainedCohort.begin(gathered), heard.message["report"]))
            self.host.record(trained[-1], heard.message["seconds"])
        return trained

    def step_together(self, event: Event, cohorts: Sequence[TrainedCohort]) -> list[WeighedCohort]:
        """Let the due servers step, each in its process, and mix their models here."""
        protocol, servers = self.protocol, event.servers
        ids = [server.id for server in servers]
        protocol.send_all(ids, {"number": self.state.rounds_done + 1})
        for _ in range(protocol.iterations):
            answers = protocol.collect(event)
            for server in servers:
                server.load_model(answers[server.id]["model"])
            protocol.mix(servers)
            for server in servers:
                protocol.supervisor.send(server.id, {"model": server.model})
        answers = protocol.collect(event)
        weighed = []
        for server, cohort in zip(servers, cohorts, strict=True):
            copy_state(server, answers[server.id]["stepped"])
            fields = answers[server.id]["cohort"]
            weighed.append(with_fields(WeighedCohort.weigh(cohort, fields["weights"], 1.0), fields))
        protocol.send_all(ids, {"count": True})
        self.store_rows(weighed)
        return weighed


class CoordinatorLoop(FederatedLoop):
    """Rounds whose servers are processes.

    Args:
        trainer: as for FederatedLoop, and so are `rounds`, `options` and `measures`.
        supervisor: the processes.
    """

    round_class = CoordinatorRound

    def __init__(
        self,
        trainer: Trainer,
        rounds: int,
        options: RoundOptions,
        measures: EvaluationOptions | None = None,
        *,
        supervisor: Supervisor,
    ) -> None:
        self.has_clock = options.clock is not None
        is_timed = self.has_clock or supervisor.plan.pace == "real"
        clock = options.clock or (Clock(Latency(arrival=Constant(0.0))) if is_timed else None)
        super().__init__(trainer, rounds, replace(options, request=ONE_BY_ONE, clock=clock), measures)
        self.supervisor = supervisor
        self.latencies = Latencies()

    @property
    def federation(self) -> CoordinatorProtocol:
        """The processes, and copies of their servers."""
        assert isinstance(self.state.protocol, CoordinatorProtocol)
        return self.state.protocol

    def create_protocol(self) -> CoordinatorProtocol:
        """Copies of the processes' servers."""
        federation, options = super().create_protocol().federation, self.options
        if options.cloud is None:
            return OneServerProtocol(federation, Cloud(servers=1), options.seed, self.supervisor)
        return CoordinatorProtocol(federation, options.cloud, options.seed, self.supervisor)

    def on_run_start(self) -> None:
        """Send the servers their initial state; they begin while the initial model is measured here."""
        self.federation.begin(self.states)
        super().on_run_start()

    def advance(self) -> None:
        """One round; if a server is lost during it, the round is repeated without that server."""
        while True:
            try:
                return super().advance()
            except ServerLostError:
                continue

    def record(self, cohort: Cohort, seconds: list[float]) -> None:
        """Record how long a server's round took, and each of its clients."""
        clock = self.options.clock
        if clock is not None and self.federation.is_real:
            arrivals = clock.latency.arrivals(self.options.seed, cohort.round, cohort.clients)
            self.latencies.add(cohort, arrivals, np.array(seconds))

    def teardown(self) -> None:
        """Write the latencies, however the run ends."""
        super().teardown()
        if self._ready and self.folder is not None and self.federation.is_real:
            for cohort in self.federation.unfinished():
                self.record(cohort, [cohort.duration_s] * len(cohort.clients))
            self.latencies.write(self.folder, has_clock=self.has_clock)


def with_fields(cohort: C, filled: Message) -> C:
    """The cohort with these stacked fields replaced."""
    return replace(cohort, parts=cohort.parts | filled)


def copy_state(server: Server, state: Message) -> None:
    """Set a server's copy to the state of its process. Callbacks that only watch exist only here."""
    states = iter(state["callbacks"])
    callbacks = [next(states) if callback.decides else {} for callback in server.callbacks]
    server.restore(Snapshot(state["model"], server.clock, state["optimizer"], callbacks))
