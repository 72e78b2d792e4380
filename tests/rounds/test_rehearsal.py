"""A rehearsal is the run's own clock: the same events at the same times, by the same draws, whatever the protocol."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedlit import Buffer, Clock, Cloud, Constant, Exponential, FedAvg, FederatedTrainer, Latency, Trace
from fedlit.client.cohort import Cohort
from fedlit.clock.distributions import Seconds
from fedlit.errors import ConfigError
from fedlit.rounds.assembly import simulate_clock
from fedlit.rounds.buffered import BufferedEvent
from fedlit.rounds.loop import FederatedLoop
from fedlit.rounds.protocol import Event
from fedlit.server.base import ServerCallback
from fedlit.server.optimizers import SGD
from tests.problems import run, tiny_data, tiny_net

POPULATION, ROUNDS = 12, 6
PROTOCOLS: dict[str, dict[str, Any]] = {
    "flat": {},
    "flat, the earliest": {"sampler": "earliest"},
    "all servers": {"cloud": Cloud(servers=3)},
    "async": {"cloud": Cloud(servers=3, first=2)},
    "rigorous": {"cloud": Cloud(servers=3, first=2, protocol="rigorous")},
    "buffer": {"buffer": Buffer(size=2, concurrency=5)},
}
DRAWN = Clock(Latency(arrival=Exponential(2.0), compute=Exponential(1.0)))


def recorded(folder: Path, wanted: Any = None) -> Clock:
    """Seconds of every round and client, or of those that are wanted; no two alike."""
    rows = sorted(wanted or product(range(1, ROUNDS + 2), range(POPULATION)))
    lines = [f"{number},{client},{(7 * number + 5 * client) % 11 + client / 100}" for number, client in rows]
    (folder / "trace.csv").write_text("\n".join(["round,client,seconds", *lines]) + "\n")
    return Clock(Latency(arrival=Trace(str(folder / "trace.csv")), compute=Constant(0.0)))


class Happened(ServerCallback):
    """When each event of a run was, whose servers stepped, and which clients' reports they stepped with."""

    decides = False

    def __init__(self) -> None:
        self.events: list[tuple[float, list[int], list[int]]] = []
        self.reported: list[int] = []

    def on_users_measured(self, trainer: Any, client: Any, cohort: Cohort | None, records: Any) -> None:
        self.reported = [] if cohort is None else sorted(cohort.clients)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        federation, number = trainer.loop.federation, trainer.loop.rounds_done
        stepped = [server.id for server in federation.servers if server.stepped == number]
        self.events.append((federation.time, stepped, self.reported))


def fitted(protocol: str, clock: Clock) -> tuple[FederatedTrainer, list[Any]]:
    happened = Happened()
    options = {"clients_per_round": 2, "rounds": ROUNDS, "server_optimizer": SGD(lr=0.5)} | PROTOCOLS[protocol]
    trainer = run(client(), tiny_data((9,) * POPULATION), clock=clock, callbacks=[happened], **options)
    return trainer, happened.events


def client() -> FedAvg:
    return FedAvg(tiny_net(), lr=0.1, batch_size=4, local_epochs=1)


def rehearsed(trainer: FederatedTrainer) -> list[Event]:
    data = tiny_data((9,) * POPULATION)
    data.setup()
    return list(simulate_clock(client(), data, trainer.loop.options, ROUNDS))


def reporters(event: Event) -> list[int]:
    assert isinstance(event, BufferedEvent)
    return sorted(report.client for report in event.filling.reports)


@pytest.mark.parametrize("seconds", ["drawn", "recorded"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_rehearsal_has_the_events_of_the_run(tmp_path: Path, protocol: str, seconds: str) -> None:
    trainer, events = fitted(protocol, DRAWN if seconds == "drawn" else recorded(tmp_path))
    found = [(event.time_s, [server.id for server in event.servers]) for event in rehearsed(trainer)]
    assert found == [(time, servers) for time, servers, _ in events]
    assert len({time for time, _ in found}) > 3


@pytest.mark.parametrize("seconds", ["drawn", "recorded"])
def test_the_rehearsal_of_a_buffer_has_the_reports_of_the_run(tmp_path: Path, seconds: str) -> None:
    trainer, events = fitted("buffer", DRAWN if seconds == "drawn" else recorded(tmp_path))
    assert [reporters(event) for event in rehearsed(trainer)] == [clients for _, _, clients in events]


def asked_for(folder: Path, protocol: str, monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, int]]:
    """Round and client of every number that the rounds of a run ask of a trace, without its rehearsal."""
    asked: set[tuple[int, int]] = set()
    lookup = Trace.lookup

    def noted(trace: Trace, round: Any, clients: Any) -> Seconds:
        asked.update(zip((np.broadcast_to(round, np.shape(clients)) + 1).tolist(), map(int, clients), strict=True))
        return lookup(trace, round, clients)

    with monkeypatch.context() as patch:
        patch.setattr(Trace, "lookup", noted)
        patch.setattr("fedlit.trainer.fit.simulate_clock", lambda *parts: [])
        patch.setattr(FederatedLoop, "on_run_start", lambda loop: (asked.clear(), on_run_start(loop)))
        fitted(protocol, recorded(folder))
    return asked


on_run_start = FederatedLoop.on_run_start


@pytest.mark.parametrize("protocol", ["flat", "async", "buffer"])
def test_a_trace_with_just_what_the_run_asks_for_is_enough(
    tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = asked_for(tmp_path, protocol, monkeypatch)
    assert len(wanted) < POPULATION * ROUNDS
    assert len(fitted(protocol, recorded(tmp_path, wanted))[1]) == ROUNDS


@pytest.mark.parametrize("protocol", ["flat", "async", "buffer"])
def test_a_trace_that_lacks_the_last_number_is_refused_before_any_round(
    tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = asked_for(tmp_path, protocol, monkeypatch)
    clock = recorded(tmp_path, wanted - {max(wanted)})
    with pytest.raises(ConfigError, match=f"too short: round {max(wanted)[0]} needs") as refused:
        fitted(protocol, clock)
    assert "in round" not in str(refused.value)


def test_a_finished_run_with_a_trace_of_just_its_rounds_is_opened_again(tmp_path: Path) -> None:
    wanted = set(product(range(1, ROUNDS + 1), range(POPULATION)))
    options = {"clock": recorded(tmp_path, wanted), "rounds": ROUNDS, "run": tmp_path / "run"}
    run(client(), tiny_data((9,) * POPULATION), **options)
    assert run(client(), tiny_data((9,) * POPULATION), resume=True, **options).loop.rounds_done == ROUNDS
