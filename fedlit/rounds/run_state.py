"""RunState: the state of a run that checkpoints hold and that a failed round restores."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedlit.client.states import ClientStates
from fedlit.engines.choose import EngineChoice, Request, check_same_engine, stays
from fedlit.errors import ResumeError
from fedlit.evaluation.history import Best, History, ServerHistory
from fedlit.params import Params
from fedlit.ranks import Ranks
from fedlit.results.events import RoundEvents
from fedlit.rounds.protocol import ServerProtocol, ServerRecords
from fedlit.server.server import Server

log = logging.getLogger("fedlit")


@dataclass(frozen=True)
class RoundRecord:
    """What was measured in a round."""

    values: dict[str, float]
    """The row of metrics.csv."""
    users: dict[str, Any] | None = None
    """The record of each client; None if the round is not evaluated."""
    newcomers: dict[str, Any] | None = None
    """The record of each client that was held back; None unless they are measured after this round."""
    servers: ServerRecords = field(default_factory=dict)
    """The record of each server, if there are several and the round is evaluated."""
    global_model: Params = field(default_factory=dict)
    """The model that is measured as the global one, so that callbacks are called only once."""
    happened: RoundEvents | None = None
    """What is written to events.jsonl; None in a simulation."""


class RunState:
    """The state of a run that checkpoints hold and that a failed round restores."""

    protocol: ServerProtocol
    """The servers and their clocks; set by `FederatedLoop.create_servers`."""

    def __init__(self) -> None:
        self.rounds_done = 0
        self.clients = ClientStates()
        self.history = History()
        self.events: list[dict[str, Any]] = []
        """The lines of events.jsonl, from round 0 on; none in a simulation."""
        self.server_history = ServerHistory()
        self.best = Best()
        self.first_risk: float | None = None
        """The mean training loss of the first round, to which later ones are compared."""
        self.last_records: dict[str, Any] | None = None
        """The records of all clients from the last evaluated round of this process."""
        self.last_newcomers: dict[str, Any] | None = None
        """The records of the newcomers, from the last round of this process after which they were measured."""
        self.global_model: Params = {}
        """The global model of the last finished round, as measured, so that callbacks are called only once."""
        self.choice: EngineChoice | None = None
        """The engine of the run; None until it is chosen."""
        self.begun_with: dict[str, Any] | None = None
        """The recorded engine of a resumed run that continues with other processes or on another device; else None."""
        self.in_round = False
        self.postponed: list[Callable[[], None]] = []
        """Actions that wait for the round's end."""

    @property
    def server(self) -> Server:
        """The one server, or a cloud's first."""
        return self.protocol.servers[0]

    def record_choice(self, choice: EngineChoice) -> None:
        """Save this engine in checkpoints from now on."""
        self.choice = choice

    def at_round_end(self, action: Callable[[], None]) -> None:
        """Run the action now, or inside a round, when the round is complete."""
        if self.in_round:
            self.postponed.append(action)
        else:
            action()

    def add(self, number: int, record: RoundRecord, best_model: Callable[[], Params]) -> None:
        """Add a committed round; `best_model` is called for its model if the round is the best so far."""
        self.global_model = record.global_model
        self.history.add(number, record.values)
        if record.happened is not None:
            self.events.append(record.happened.plain())
        if record.users is not None:
            self.last_records = record.users
        if record.newcomers is not None:
            self.last_newcomers = record.newcomers
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
            **({"events": self.events} if self.events else {}),
        }

    def load_state_dict(self, state: dict[str, Any], folder: Path | None, ranks: Ranks) -> None:
        """The inverse of `state_dict`; `folder` holds the checkpoint and its rows on disk."""
        self.rounds_done = state["rounds"]
        self.protocol.load_state_dict(state["federation"])
        self.clients.load_state_dict(state["clients"], folder, ranks)
        self.history.load_state_dict(state["history"])
        self.server_history.load_state_dict(state["servers"])
        self.best.load_state_dict(state["best"])
        self.first_risk = state["first_risk"]
        self.events = state.get("events", [])

    def continue_with(self, recorded: dict[str, Any], request: Request, processes: int) -> None:
        """Continue with the recorded engine, or with one of the same form for other processes or another device."""
        check_same_engine(recorded, request, processes)
        choice, elsewhere = EngineChoice(**recorded["choice"]), not stays(recorded, request)
        if choice.processes == processes and not elsewhere:
            self.choice = choice
            return
        self.choice, self.begun_with = None, recorded
        before, now = f"{choice.processes} processes", str(processes)
        if elsewhere:
            before = f"{before} on {choice.accelerator}"
            now = f"{now} on {'gpu' if request.accelerator == 'gpu' else 'cpu'}"
        log.info(
            f"This run had {before} so far and goes on with {now}: its numbers agree up to rounding "
            "(1e-10 in float64), not in every bit."
        )


_BEGUN = {
    "remote": "is a federation of nodes (fedlit flower)",
    "replay": "repeats a federation from its events (fedlit fit --replay)",
}
"""Key in a checkpoint -> what such a run is."""


def check_begun_by(state: Mapping[str, Any], key: str) -> None:
    """ResumeError unless the checkpoint is of a loop with this key; a simulation has none."""
    begun = next((name for name in _BEGUN if name in state), "")
    if begun != key:
        raise ResumeError(
            f"This run {_BEGUN.get(begun, 'is a simulation (fedlit fit)')}. Resume it with the command with which it "
            "began."
        )
