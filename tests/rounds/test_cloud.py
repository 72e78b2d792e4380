"""Many servers on a clock: against an oracle that was written from the paper alone, and the laws of the protocols."""

from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyarrow import parquet
from torch import Tensor

from fedlit import (
    Centralized,
    Client,
    Clock,
    Cloud,
    Constant,
    Exponential,
    FedAvg,
    FedBC,
    FedBCD,
    FedBCDI,
    FederatedTrainer,
    FedFor,
    FixedSampler,
    Given,
    Latency,
    QuotaSampler,
    RandomPairs,
    Ring,
    Scaffold,
    ServerCallback,
    Trace,
)
from fedlit.clock import Distribution
from fedlit.errors import ConfigError, ResumeError
from fedlit.experiments.conformance.entries import ENTRIES
from fedlit.experiments.conformance.problem import LOCAL as CONFORMANCE_LOCAL
from fedlit.experiments.conformance.problem import everything, largest_gap, new_trainer, tiny_data
from fedlit.experiments.conformance.problem import tiny_net as conformance_net
from fedlit.keys import Purpose, generator
from fedlit.server.cloud import Complete, Mixing, check_doubly_stochastic
from fedlit.server.optimizers import SGD
from tests.algorithms.test_oracles import BATCH, Problem
from tests.cases import KINDS, slow_but
from tests.oracles import clouds as oracle
from tests.problems import run, tiny_net

SIZES = (7, 12, 16, 9, 11, 23, 8, 14, 10, 19, 13, 15)
"""Twelve clients: three servers with four each."""
SERVERS, ACTIVE, EVENTS = 3, 2, 5
CLOCK = Clock(Latency(arrival=Exponential(2.0), compute=Exponential(1.0)))
BLOCKS: dict[str, Any] = {"extrapolation": 0.7, "box": 0.6, "server_lr": 0.5}


class Watch(ServerCallback):
    """Every event: when, who, and all servers' models and clients' rows."""

    decides = False

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        federation, states = trainer.loop.federation, trainer.loop.states
        self.events.append(
            {
                "time": federation.time,
                "z": [theta(server.z) for server in federation.servers],
                "rounds": [server.rounds for server in federation.servers],
                "x": {
                    k: theta(rows_of(states, k, "local")) for k in states.touched if states.keeps("local.linear.bias")
                },
                "x_prev": {k: theta(rows_of(states, k, "memory")) for k in states.touched if keeps_memory(states)},
            }
        )


def keeps_memory(states: Any) -> bool:
    return bool(states.keeps("memory.linear.bias"))


def rows_of(states: Any, client: int, kind: str) -> dict[str, Tensor]:
    return {name: states.row(f"{kind}.{name}", client) for name in ("linear.weight", "linear.bias")}


def theta(model: dict[str, Tensor]) -> np.ndarray:
    """[W | b]."""
    return np.concatenate([model["linear.weight"].numpy(), model["linear.bias"].numpy()[:, None]], axis=1).copy()


def blocks_of(clients: int, servers: int) -> list[list[int]]:
    return [block.tolist() for block in np.array_split(np.arange(clients), servers)]


def draws(problem: Problem, servers: list[list[int]], client: Client, rounds: int, algorithm: str) -> list[list[Any]]:
    """What the run draws, for the oracle: cohorts by arrival, K_i, batches, latencies, by each server's own rounds."""
    drawn = []
    for own in servers:
        rows = []
        for r in range(rounds):
            arrival = dict(zip(own, CLOCK.latency.arrivals(0, r, own).tolist(), strict=True))
            order = oracle.earliest(arrival, len(own))
            active, offline = sorted(order[:ACTIVE]), sorted(order[:3])
            trains = offline if algorithm == "fedbcd_i" else active
            if algorithm == "fedavg":
                work = {k: int(client.planned_steps(np.array([len(problem.rows[k])]))[0]) for k in trains}
            else:
                work = {k: int(generator(0, Purpose.WORK, round=r, client=k).integers(1, 6)) for k in trains}
            process = dict(zip(trains, CLOCK.latency.compute.draw(0, Purpose.COMPUTE, r, trains).tolist(), strict=True))
            rows.append(
                oracle.Draw(
                    active=active,
                    batches={k: problem.batches(k, r, steps=work[k]) for k in trains},
                    steps=work,
                    offline=offline if algorithm == "fedbcd_i" else None,
                    arrival=arrival,
                    process=process,
                )
            )
        drawn.append(rows)
    return drawn


def client_of(algorithm: str) -> Client:
    local: dict[str, Any] = {"lr": 0.05, "batch_size": BATCH}
    if algorithm == "fedbcd":
        return FedBCD(tiny_net(), prox=0.8, **BLOCKS, **local)
    if algorithm == "fedbcd_i":
        return FedBCDI(tiny_net(), prox=0.3, offline_clients=3, offline_rounds=2, **BLOCKS, **local)
    return FedAvg(tiny_net(), local_epochs=2, **local)


def rule_of(algorithm: str, k_z: int) -> oracle.Rule:
    if algorithm == "fedbcd":
        return oracle.Rule("fedbcd", 0.05, 0.5, gamma=0.8, zeta=0.7, box=0.6, k_z=k_z)
    if algorithm == "fedbcd_i":
        return oracle.Rule("fedbcd_i", 0.05, 0.5, gamma=0.3, zeta=0.7, box=0.6, k_z=k_z, cap=2)
    return oracle.Rule("fedavg", 0.05, 0.4, k_z=k_z)


def traced(
    algorithm: str, protocol: str, first: int, k_z: int, engine: str, mixing: Mixing | None = None
) -> tuple[list[Any], list[Any]]:
    """What fedlit does in every event, and what the oracle does; of one `mixing` where all servers step together."""
    problem, watch, client = Problem(SIZES), Watch(), client_of(algorithm)
    servers = blocks_of(len(SIZES), SERVERS)
    options: dict[str, Any] = {"engine": engine} | ({"compiled": False, "lanes": 2} if engine == "vectorized" else {})
    events = EVENTS if protocol == "async" else 12
    run(
        client,
        problem.data,
        rounds=events,
        clients_per_round=ACTIVE,
        sampler="earliest",
        clock=CLOCK,
        cloud=Cloud(SERVERS, first, protocol, mixing or Complete(), k_z),  # type: ignore[arg-type]
        server_optimizer=SGD(lr=0.4) if algorithm == "fedavg" else "SGD",
        callbacks=[watch],
        eval_every=100,
        **options,
    )
    given = draws(problem, servers, client, events + 1, algorithm)
    start = theta(tiny_net().state_dict())
    z0 = (start[:, :-1], start[:, -1])
    own = {"mixing": mixing and [mixing.matrix(range(SERVERS), 0, t) for t in range(events)]}
    cloud = oracle.async_cloud if protocol == "async" else oracle.rigorous_cloud
    trace = cloud(problem.given, servers, z0, given, rule_of(algorithm, k_z), first, events, **own)
    return watch.events, trace[:events]


PROTOCOLS = [("async", 2), ("async", 3), ("rigorous", 2)]
ENGINES = ["sequential", "vectorized"]
CLOUDS = list(product(["fedbcd", "fedbcd_i", "fedavg"], PROTOCOLS, [1, 2], ENGINES))
QUICK = [
    *(("fedbcd_i", protocol, 2, "sequential") for protocol in PROTOCOLS),
    *(("fedbcd", PROTOCOLS[0], k_z, "sequential") for k_z in (1, 2)),
    *(("fedbcd", PROTOCOLS[2], 2, engine) for engine in ENGINES),
    *(("fedavg", protocol, 1, "vectorized") for protocol in PROTOCOLS[1:]),
    ("fedavg", PROTOCOLS[0], 2, "sequential"),
]
"""Every algorithm, protocol, K_z and engine."""


@pytest.mark.parametrize(("algorithm", "cloud", "k_z", "engine"), slow_but(QUICK, CLOUDS))
def test_every_event_matches_the_oracle(algorithm: str, cloud: tuple[str, int], k_z: int, engine: str) -> None:
    ours, theirs = traced(algorithm, *cloud, k_z, engine)
    assert len(ours) == len(theirs)
    for event, truth in zip(ours, theirs, strict=True):
        assert event["time"] == pytest.approx(truth.time, abs=1e-10)
        assert tuple(event["rounds"]) == truth.rounds
        np.testing.assert_allclose(np.stack(event["z"]), truth.z, rtol=0, atol=1e-10)
        for client, x in event["x"].items():
            if algorithm != "fedavg":
                np.testing.assert_allclose(x, truth.x[client], rtol=0, atol=1e-10)
                np.testing.assert_allclose(event["x_prev"][client], truth.x_prev[client], rtol=0, atol=1e-10)


ROUNDABOUT = [
    [[0.8, 0.2, 0.0], [0.0, 0.8, 0.2], [0.2, 0.0, 0.8]],
    [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.5, 0.5]],
    [[0.1, 0.0, 0.9], [0.0, 1.0, 0.0], [0.9, 0.0, 0.1]],
]
"""Three matrices for three servers, none like another."""


@pytest.mark.parametrize("k_z", [1, 2])
@pytest.mark.parametrize("mixing", [Given(ROUNDABOUT), RandomPairs(0.5)], ids=["Given", "RandomPairs"])
@pytest.mark.parametrize(
    ("algorithm", "protocol"), [("fedbcd", "async"), ("fedbcd_i", "async"), ("fedavg", "async"), ("fedbcd", "rigorous")]
)
def test_event_t_mixes_with_matrix_t_in_all_its_iterations(
    algorithm: str, protocol: str, mixing: Mixing, k_z: int
) -> None:
    """The oracle mixes with a^(t), from t = 0 on, K_z times (Algorithm 1, line 18)."""
    ours, theirs = traced(algorithm, protocol, SERVERS, k_z, "sequential", mixing)
    for event, truth in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(np.stack(event["z"]), truth.z, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("few_inner_steps")
@pytest.mark.parametrize("name", slow_but(KINDS, (name for name in ENTRIES if name != "centralised")))
def test_one_server_is_the_flat_algorithm_bit_for_bit(name: str) -> None:
    entry, found = ENTRIES[name], []
    for cloud in (None, Cloud(servers=1)):
        trainer = new_trainer(rounds=3, clients_per_round=3, engine="sequential", cloud=cloud, **entry.trainer)
        trainer.fit(entry.make(conformance_net(), **CONFORMANCE_LOCAL), datamodule=tiny_data())
        found.append({**trainer.loop.server.z, **trainer.loop.states.state_dict()["rows"]})
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(value, found[1][key]) for key, value in found[0].items())


@pytest.mark.parametrize("mixing", [Complete(), Ring(), RandomPairs(0.6)])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_mixing_keeps_the_mean(mixing: Mixing, count: int) -> None:
    for event in range(5):
        matrix = mixing.matrix(range(count), 0, event)
        check_doubly_stochastic(matrix)
        models = np.random.default_rng(event).normal(size=(count, 5))
        np.testing.assert_allclose((matrix @ models).mean(0), models.mean(0), atol=1e-12)


def cloud_run(data: Any, folder: Path | None = None, rounds: int = 6, **options: Any) -> FederatedTrainer:
    """FedBCD under the Async-cloud, as a run that can be resumed."""
    common: dict[str, Any] = {
        "clients_per_round": ACTIVE,
        "sampler": "earliest",
        "clock": CLOCK,
        "cloud": Cloud(servers=SERVERS, first=2),
        "checkpoint_every": 1,
        "run": folder,
    }
    return run(options.pop("client", client_of("fedbcd")), data, rounds=rounds, **(common | options))


@cache
def undisturbed(protocol: Any) -> FederatedTrainer:
    """Nobody changes it."""
    return cloud_run(Problem(SIZES).data, cloud=Cloud(servers=SERVERS, first=2, protocol=protocol))


@pytest.mark.parametrize("protocol", ["async", "rigorous"])
@pytest.mark.parametrize("stop", [1, 2, 4])
def test_a_cloud_is_resumed_to_the_same_bits_with_its_clock(tmp_path: Path, protocol: Any, stop: int) -> None:
    data, cloud, whole = Problem(SIZES).data, Cloud(servers=SERVERS, first=2, protocol=protocol), undisturbed(protocol)
    cloud_run(data, tmp_path, rounds=stop, cloud=cloud)
    resumed = cloud_run(data, tmp_path, cloud=cloud, resume=True)
    a, b = (trainer.loop.federation.state_dict() for trainer in (whole, resumed))
    assert a["time"] == b["time"]
    for one, other in zip(a["servers"], b["servers"], strict=True):
        assert one["clock"] == other["clock"]
        assert all(torch.equal(value, other["model"][name]) for name, value in one["model"].items())
    rows, again = (trainer.loop.states.state_dict()["rows"] for trainer in (whole, resumed))
    assert all(torch.equal(value, again[name]) for name, value in rows.items())


def written_before_events_were_counted(folder: Path) -> None:
    """The checkpoint as an earlier fedlit wrote it."""
    path = folder / "checkpoints" / "last.ckpt"
    content = torch.load(path, weights_only=True)
    del content["loops"]["fit_loop"]["federation"]["events"]
    torch.save(content, path)


@pytest.mark.parametrize("mixing", [Given(ROUNDABOUT), RandomPairs(0.5)], ids=["Given", "RandomPairs"])
def test_a_cloud_whose_matrices_change_is_resumed_to_the_same_bits(tmp_path: Path, mixing: Mixing) -> None:
    data, cloud = Problem(SIZES).data, Cloud(servers=SERVERS, mixing=mixing, iterations=2)
    whole = cloud_run(data, cloud=cloud)
    cloud_run(data, tmp_path, rounds=2, cloud=cloud)
    resumed = cloud_run(data, tmp_path, cloud=cloud, resume=True)
    for one, other in zip(whole.loop.federation.servers, resumed.loop.federation.servers, strict=True):
        assert all(torch.equal(value, other.z[name]) for name, value in one.z.items())


@pytest.mark.parametrize("mixing", [Given(ROUNDABOUT), RandomPairs(0.5)], ids=["Given", "RandomPairs"])
def test_a_run_that_counted_its_matrices_otherwise_is_not_resumed(tmp_path: Path, mixing: Mixing) -> None:
    data, cloud = Problem(SIZES).data, Cloud(servers=SERVERS, mixing=mixing)
    cloud_run(data, tmp_path, rounds=2, cloud=cloud)
    written_before_events_were_counted(tmp_path)
    with pytest.raises(ResumeError, match="from the second one on.*--overwrite"):
        cloud_run(data, tmp_path, cloud=cloud, resume=True)


@pytest.mark.parametrize("mixing", [Complete(), Ring(), Given(ROUNDABOUT[:1])], ids=["Complete", "Ring", "Given"])
def test_a_run_whose_matrices_are_all_the_same_is_resumed_whoever_began_it(tmp_path: Path, mixing: Mixing) -> None:
    data, cloud = Problem(SIZES).data, Cloud(servers=SERVERS, mixing=mixing)
    cloud_run(data, tmp_path, rounds=2, cloud=cloud)
    written_before_events_were_counted(tmp_path)
    assert cloud_run(data, tmp_path, rounds=3, cloud=cloud, resume=True).loop.rounds_done == 3


def test_a_resumed_cloud_has_what_each_servers_callbacks_keep(tmp_path: Path) -> None:
    """SCAFFOLD: each server has a control variate of its own."""
    data = Problem(SIZES).data

    def fitted(folder: Path | None, rounds: int, **options: Any) -> FederatedTrainer:
        return cloud_run(data, folder, rounds, client=Scaffold(tiny_net(), lr=0.05, batch_size=4), **options)

    whole = fitted(None, 4)
    fitted(tmp_path, 2)
    resumed = fitted(tmp_path, 4, resume=True)
    for one, other in zip(whole.loop.federation.servers, resumed.loop.federation.servers, strict=True):
        assert all(torch.equal(value, other.model[name]) for name, value in one.model.items())


def test_an_event_that_failed_is_played_again_to_the_same_bits() -> None:
    """Cohorts are gathered again: the dual ascent has written into that of a server that stepped alone."""
    trained: list[int] = []
    armed = [True]

    class FailsOnce(ServerCallback):
        """Every server has a copy. They read what clients keep, as an algorithm's callback may."""

        def on_cohort_start(self, trainer: Any, client: Any, cohort: Any) -> None:
            assert len(cohort.state["dual"]) == len(cohort.clients)

        def on_cohort_trained(self, trainer: Any, client: Any, cohort: Any) -> None:
            trained.append(cohort.run_round)

        def on_server_step_end(self, trainer: Any, client: Any, cohort: Any) -> None:
            if armed and trained.count(cohort.run_round) == 1:
                armed.clear()
                raise ZeroDivisionError

    def client() -> Client:
        return FedBC(tiny_net(), dual_lr=0.5, start_from="local", lr=0.05, batch_size=4)

    cloud = Cloud(servers=SERVERS, first=2, protocol="rigorous")
    given: dict[str, Any] = {"clients_per_round": ACTIVE, "engine": "sequential", "clock": CLOCK, "cloud": cloud}
    whole = new_trainer(rounds=EVENTS, **given)
    failing = new_trainer(rounds=EVENTS, callbacks=[FailsOnce()], **given)
    whole.fit(client(), datamodule=Problem(SIZES).data)
    with pytest.raises(ZeroDivisionError):
        failing.fit(client(), datamodule=Problem(SIZES).data)
    assert failing.loop.rounds_done < EVENTS
    while failing.loop.rounds_done < EVENTS:
        failing.loop.round.play()
    assert largest_gap(everything(whole), everything(failing)) == 0


def test_time_and_consensus_are_measured() -> None:
    trainer = cloud_run(Problem(SIZES).data)
    rows = trainer.loop.history.rows
    times = [row["time/sim_s"] for row in rows]
    assert times[0] == 0
    assert times == sorted(times)
    assert times[-1] > 0
    assert rows[0]["cloud/consensus"] == pytest.approx(0, abs=1e-12)
    assert rows[-1]["cloud/consensus"] > 0


def test_servers_are_recorded_and_their_waiting_adds_up(tmp_path: Path) -> None:
    trainer = cloud_run(Problem(SIZES).data, tmp_path)
    rows = parquet.read_table(tmp_path / "servers.parquet").to_pylist()
    assert len(rows) == 6 * SERVERS
    assert all(row["finish_s"] >= row["start_s"] for row in rows)
    for server in trainer.loop.federation.servers:
        own = [row for row in rows if row["server"] == server.id and row["stepped"]]
        assert len(own) == server.rounds
        assert sum(row["waited_s"] for row in own) == pytest.approx(server.waited, abs=1e-12)
    assert 0 <= trainer.loop.history.rows[-1]["cloud/waiting"] < 1


def test_a_sync_cloud_is_one_server_with_a_quota_of_every_group() -> None:
    trainer = cloud_run(Problem(SIZES).data, cloud=None, sampler=QuotaSampler(groups=SERVERS))
    assert len(trainer.loop.federation.servers) == 1
    gathered = trainer.loop.parts.gatherer.cohorts([trainer.loop.server])[0]
    taken = [client for client, reports in zip(gathered.clients, gathered.reports.tolist(), strict=True) if reports]
    assert [sum(client // 4 == group for client in taken) for group in range(SERVERS)] == [ACTIVE] * SERVERS


def test_a_flat_round_lasts_as_long_as_its_slowest_client() -> None:
    clock = Clock(Latency(arrival=Constant(2.0), compute=Constant(0.5), per="round"))
    trainer = run(client_of("fedavg"), Problem(SIZES).data, clock=clock, rounds=3)
    assert [row["time/sim_s"] for row in trainer.loop.history.rows] == pytest.approx([0.0, 2.5, 5.0, 7.5])


class Untouched(ServerCallback):
    """Whether a round began."""

    decides = False
    was_called = False

    def on_cohort_start(self, trainer: Any, client: Client, cohort: Any) -> None:
        self.was_called = True


@dataclass(frozen=True)
class Wrong(Distribution):
    """One of a user's own, which gives what it should not."""

    value: float

    def expected(self) -> float:
        return self.value

    def quantile(self, u: Any) -> Any:
        return np.full(np.shape(u), self.value)


SAME = Clock(Latency(arrival=Constant(1.0), compute=Constant(2.0), per="round"))
LOPSIDED: dict[str, Any] = {"servers": 3, "assign": [0] * 5 + [1] * 4 + [2] * 3}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cloud": {"servers": 3, "first": 4}}, "first is 4, but there are 3 servers"),
        ({"cloud": {"servers": 3, "first": 1}}, "never learn of each other"),
        ({"cloud": {"servers": 13}}, "a server would have none"),
        ({"cloud": {"servers": 3, "first": 2}, "clock": None, "sampler": "uniform"}, "no trainer.clock"),
        ({"cloud": None, "clock": None}, "no trainer.clock"),
        ({"cloud": {"servers": 2, "assign": [0] * 12}}, "every server"),
        ({"cloud": {"servers": 2, "assign": "groups"}}, "groups"),
        ({"clients_per_round": 5}, "clients_per_round is 5"),
        ({"sampler": QuotaSampler(groups=3), "cloud": None, "clients_per_round": 5}, "clients_per_round is 5"),
        ({"clock": Clock(CLOCK.latency, deadline=3.0)}, "counts the model of every client"),
        ({"sampler": FixedSampler([0, 1])}, "counts its own clients from 0"),
        ({"clock": SAME, "cloud": {"servers": 4, "first": 2}, "clients_per_round": 2}, "never connect with the others"),
        ({"clock": SAME, "cloud": {"servers": 3, "first": 2, "protocol": "rigorous"}}, "never connect with the others"),
        ({"clock": Clock(Latency(arrival=Wrong(-1.0)))}, r"Latency.arrival is Wrong, which gave \[-1.\] seconds"),
        ({"clock": Clock(Latency(compute=Wrong(np.nan)))}, r"Latency.compute is Wrong, which gave \[nan\] seconds"),
        ({"clock": Clock(Latency(compute=Wrong(-2.0), processing="sum"))}, "Latency.compute is Wrong"),
        ({"clock": Clock(Latency(network=Wrong(np.inf)))}, r"Latency.network is Wrong, which gave \[inf\] seconds"),
        ({"clock": Clock(Latency(speed=Wrong(np.nan)))}, "the speed nan, with which it never finishes"),
        ({"client": FedFor(tiny_net())}, "FedFor cannot have 3 servers: LastMove keeps a state"),
        ({"client": Centralized(tiny_net())}, "pools everybody's data"),
        ({"client": FedBCD(tiny_net(), prox=0.8, server_sum="sum", server_lr=0.32)}, "0.3125 or less"),
        ({"client": FedBCD(tiny_net(), prox=0.8, server_sum="sum", server_lr=0.26), "cloud": LOPSIDED}, "0.25 or less"),
        ({"client": FedBCDI(tiny_net(), prox=0.2, server_sum="sum", server_lr=2.6)}, "2.5 or less"),
    ],
)
def test_what_makes_no_sense_is_refused_before_any_training(options: dict[str, Any], words: str) -> None:
    no_training = Untouched()
    with pytest.raises(ConfigError, match=words):
        cloud_run(
            Problem(SIZES).data,
            **options | ({"cloud": Cloud(**options["cloud"])} if isinstance(options.get("cloud"), dict) else {}),
            callbacks=[no_training],
        )
    assert not no_training.was_called


class OldName(ServerCallback):
    """Written for 0.1, which called `single_server_reason` so."""

    alone = "it counts one server's steps"


def test_a_callback_may_still_say_under_the_older_name_that_it_needs_a_single_server() -> None:
    with pytest.raises(ConfigError, match="OldName keeps a state .* because it counts one server's steps"):
        cloud_run(Problem(SIZES).data, cloud=Cloud(servers=3), callbacks=[OldName()])


@pytest.mark.parametrize(
    ("matrices", "words"),
    [
        ([[[0.5, 0.5], [0.6, 0.4]]], "doubly stochastic"),
        ([[[1.5, -0.5], [-0.5, 1.5]]], "doubly stochastic"),
        ([[[1.0, 0.0], [0.0, 1.0]]], "never connect"),
        ([[[0.0, 1.0], [1.0, 0.0]]], "never connect"),
        ([[[0, 1, 0], [0, 0, 1], [1, 0, 0]], [[0, 0, 1], [1, 0, 0], [0, 1, 0]]], "never connect"),
        ([[[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5], [0, 0, 0.5, 0.5]]], "never connect"),
        ([[[0.5, 0.5], [0.5, 0.5]], [[1.0]]], "rows"),
        ([], "empty"),
    ],
)
def test_matrices_that_do_not_mix_are_refused(matrices: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Given(matrices)


def test_matrices_that_connect_servers_in_turn_are_taken() -> None:
    left = [[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5], [0, 0, 0.5, 0.5]]
    middle = [[1, 0, 0, 0], [0, 0.5, 0.5, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 1]]
    mixing, models = Given([left, middle]), np.arange(4.0)
    for event in range(200):
        models = mixing.matrix(range(4), 0, event) @ models
    np.testing.assert_allclose(models, 1.5, atol=1e-12)


def test_matrices_of_ones_own_need_all_servers() -> None:
    with pytest.raises(ConfigError, match="all three must be the same"):
        Cloud(servers=3, first=2, mixing=Given([[[0.5, 0.5], [0.5, 0.5]]]))


@pytest.mark.parametrize("rate", [0.3125, 0.25])
def test_the_sum_form_takes_a_rate_that_fits_the_largest_server(rate: float) -> None:
    client = FedBCD(tiny_net(), prox=0.8, server_sum="sum", server_lr=rate)
    trainer = cloud_run(Problem(SIZES).data, rounds=1, client=client)
    assert trainer.loop.rounds_done == 1


def trace_of(folder: Path, rounds: dict[int, int], seconds: float = 1.0) -> Trace:
    """So many rounds of each client, with different seconds for each."""
    file = folder / "arrivals.csv"
    rows = [f"{r + 1},{k},{seconds + k / 10 + r / 7}" for k, count in rounds.items() for r in range(count)]
    file.write_text("\n".join(["round,client,seconds", *rows]) + "\n")
    return Trace(str(file))


def test_a_trace_is_enough_where_every_server_has_the_rounds_that_it_takes(tmp_path: Path) -> None:
    whole = Clock(Latency(arrival=trace_of(tmp_path, dict.fromkeys(range(12), 6)), compute=Constant(0.1)))
    taken = [server.rounds for server in cloud_run(Problem(SIZES).data, clock=whole).loop.federation.servers]
    assert sum(taken) == 12
    assert min(taken) < 5, "fewer than the events of the run"
    begun = {client: min(taken[client // 4] + 1, 6) for client in range(12)}
    short = Clock(Latency(arrival=trace_of(tmp_path, begun), compute=Constant(0.1)))
    again = cloud_run(Problem(SIZES).data, clock=short)
    assert [server.rounds for server in again.loop.federation.servers] == taken


@pytest.mark.parametrize(("client", "rounds", "words"), [(5, 2, "round 3"), (11, 0, "round 1")])
@pytest.mark.parametrize("cloud", [Cloud(servers=3, first=2), None], ids=["async", "flat"])
def test_a_trace_that_ends_too_early_is_refused_before_any_training(
    tmp_path: Path, client: int, rounds: int, words: str, cloud: Cloud | None
) -> None:
    recorded = dict.fromkeys(range(12), 6) | {client: rounds}
    clock, no_training = Clock(Latency(arrival=trace_of(tmp_path, recorded), compute=Constant(0.1))), Untouched()
    with pytest.raises(ConfigError, match=f"too short: {words} needs .* that of client {client}"):
        cloud_run(Problem(SIZES).data, tmp_path / "run", clock=clock, cloud=cloud, callbacks=[no_training])
    assert not no_training.was_called
    assert not (tmp_path / "run").exists()


def test_another_content_of_a_trace_is_another_run(tmp_path: Path) -> None:
    data, rounds = Problem(SIZES).data, dict.fromkeys(range(12), 6)
    cloud_run(data, tmp_path / "run", rounds=2, clock=Clock(Latency(arrival=trace_of(tmp_path, rounds))))
    same = Clock(Latency(arrival=trace_of(tmp_path, rounds)))
    assert cloud_run(data, tmp_path / "run", rounds=3, clock=same, resume=True).loop.rounds_done == 3
    other = Clock(Latency(arrival=trace_of(tmp_path, rounds, seconds=2.0)))
    with pytest.raises(ResumeError, match=r"arrival.sha256 was \w+, is \w+ \(the file holds something else\)"):
        cloud_run(data, tmp_path / "run", rounds=4, clock=other, resume=True)


@pytest.mark.parametrize(
    ("algorithm", "optimizer", "is_said"),
    [("fedavg", "SGD", True), ("fedavg", SGD(lr=0.5), False), ("fedbcd", "SGD", False), ("fedbcd", SGD(lr=2.0), True)],
)
def test_a_rate_with_which_servers_never_learn_of_each_other_is_said(
    algorithm: str, optimizer: Any, is_said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cloud_run(Problem(SIZES).data, rounds=1, client=client_of(algorithm), server_optimizer=optimizer)
    assert ("never learn of each other" in caplog.text) == is_said
