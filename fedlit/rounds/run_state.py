"""RunState: what checkpoints hold of a run, and what a round that fails restores."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedlit.client.states import ClientStates
from fedlit.engines.choose import EngineChoice, Request, check_same_engine, stays
from fedlit.evaluation.history import Best, History, ServerHistory
from fedlit.params import Params
from fedlit.ranks import Ranks
from fedlit.rounds.protocol import ServerProtocol, ServerRecords
from fedlit.server.server import Server

log = logging.getLogger("fedlit")


@dataclass(frozen=True)
class RoundRecord:
    """What was measured of a round."""

    values: dict[str, float]
    """The row of metrics.csv."""
    users: dict[str, Any] | None = None
    """The record of each client; None where the round is not evaluated."""
    servers: ServerRecords = field(default_factory=dict)
    """The record of each server, where there are several and the round is evaluated."""
    global_model: Params = field(default_factory=dict)
    """What is measured as the global model; callbacks are not asked again."""


class RunState:
    """What checkpoints hold, and what a round that fails restores."""

    protocol: ServerProtocol
    """The servers and their clocks; from `FederatedLoop.create_servers` on."""

    def __init__(self) -> None:
        self.rounds_done = 0
        self.clients = ClientStates()
        self.history = History()
        self.server_history = ServerHistory()
        self.best = Best()
        self.first_risk: float | None = None
        """The mean training loss of the first round, to which later ones are compared."""
        self.last_records: dict[str, Any] | None = None
        """Every client as it was measured last, by this process."""
        self.global_model: Params = {}
        """What is measured as the global model after the last finished round: callbacks are not asked again."""
        self.choice: EngineChoice | None = None
        """The engine of the run, as soon as it is chosen."""
        self.begun_with: dict[str, Any] | None = None
        """What a resumed run recorded of its engine, where it goes on with another number of processes or elsewhere."""
        self.in_round = False
        self.postponed: list[Callable[[], None]] = []
        """Actions that wait for the round's end."""

    @property
    def server(self) -> Server:
        """The one server, or a cloud's first."""
        return self.protocol.servers[0]

    def record_choice(self, choice: EngineChoice) -> None:
        """What checkpoints say of the engine from now on."""
        self.choice = choice

    def at_round_end(self, action: Callable[[], None]) -> None:
        """Run the action now, or, inside a round, as soon as the round is complete."""
        if self.in_round:
            self.postponed.append(action)
        else:
            action()

    def add(self, number: int, record: RoundRecord, best_model: Callable[[], Params]) -> None:
        """A round is committed; `best_model` gives its model, where it is the best so far."""
        self.global_model = record.global_model
        self.history.add(number, record.values)
        if record.users is not None:
            self.last_records = record.users
        if record.servers:
            self.server_history.append(record.servers)
        self.best.offer(number, record.values, best_model)
        self.rounds_done = number

    def state_dict(self) -> dict[str, Any]:
        """The state at a round's end."""
        return {
            "rounds": self.rounds_done,
            "federation": self.protocol.state_dict(),
            "clients": self.clients.state_dict(),
            "history": self.history.state_dict(),
            "servers": self.server_history.state_dict(),
            "best": self.best.state_dict(),
            "first_risk": self.first_risk,
        }

    def load_state_dict(self, state: dict[str, Any], folder: Path | None, ranks: Ranks) -> None:
        """The inverse; `folder` is the checkpoint's, where its rows on disk are."""
        self.rounds_done = state["rounds"]
        self.protocol.load_state_dict(state["federation"])
        self.clients.load_state_dict(state["clients"], folder, ranks)
        self.history.load_state_dict(state["history"])
        self.server_history.load_state_dict(state["servers"])
        self.best.load_state_dict(state["best"])
        self.first_risk = state["first_risk"]

    def continue_with(self, recorded: dict[str, Any], request: Request, processes: int) -> None:
        """The engine of the run so far, or, with other processes or elsewhere, one of the same form."""
        check_same_engine(recorded, request, processes)
        choice, elsewhere = EngineChoice(**recorded["choice"]), not stays(recorded, request)
        if choice.processes == processes and not elsewhere:
            self.choice = choice
            return
        self.choice, self.begun_with = None, recorded
        had, has = f"{choice.processes} processes", str(processes)
        if elsewhere:
            had = f"{had} on {choice.accelerator}"
            has = f"{has} on {'gpu' if request.accelerator == 'gpu' else 'cpu'}"
        log.info(
            f"This run had {had} so far and goes on with {has}: its numbers agree up to rounding (1e-10 in float64), "
            "not in every bit."
        )
