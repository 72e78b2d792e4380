"""Buffered asynchrony: against an oracle written from FedBuff, the flat round as its limit, and clients in flight."""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedlit import (
    Buffer,
    Client,
    Clock,
    Cloud,
    Constant,
    Exponential,
    FedAdam,
    FedAvg,
    FedBC,
    FedBCD,
    FedBCDI,
    FederatedTrainer,
    FedFor,
    FixedSampler,
    Hinge,
    Latency,
    Polynomial,
    QFedAvg,
    QuotaSampler,
    Scaffold,
    ServerCallback,
)
from fedlit.config.files import resolve_configs
from fedlit.config.fit_cli import FitCLI
from fedlit.errors import ConfigError
from fedlit.experiments.conformance import checks
from fedlit.experiments.conformance.entries import ENTRIES
from fedlit.experiments.conformance.problem import LOCAL, everything, new_trainer
from fedlit.experiments.conformance.problem import tiny_data as conformance_data
from fedlit.experiments.conformance.problem import tiny_net as conformance_net
from fedlit.rounds.buffered import InFlight
from fedlit.server.sampling import UniformSampler
from tests.algorithms.test_oracles import BATCH, EPOCHS, Problem
from tests.cases import KINDS, slow_but
from tests.oracles import buffered as oracle
from tests.oracles.rounds import Local
from tests.problems import run, tiny_net
from tests.rounds.test_transaction import POINTS, ROUNDS, Recorder, arranged, same, sound, state_of
from tests.trainer.test_resume import SEQUENTIAL, assert_same_bits, finish, outcome, rounds_saved, stopped

SIZES = (7, 12, 16, 9, 11, 23, 8, 14)
CLOCK = Clock(Latency(arrival=Exponential(2.0), compute=Exponential(1.0)))
EVEN = Clock(Latency(arrival=Constant(2.0), compute=Constant(0.5), per="round"))
"""Everyone takes as long as everyone else."""
SMALL = Buffer(size=2, concurrency=3)
EVENTS = 6


class Watch(ServerCallback):
    """Every step of the server: when, who, and what they keep."""

    decides = False

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.reports: list[int] = []

    def on_cohort_trained(self, trainer: Any, client: Any, cohort: Any) -> None:
        self.reports, self.stale = list(cohort.clients), cohort.staleness.tolist()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        federation, states = trainer.loop.federation, trainer.loop.states
        names = [name for name in states.state_dict()["rows"] if not name.startswith("local.")]
        self.events.append(
            {
                "time": federation.time,
                "z": theta(federation.servers[0].model, ""),
                "clients": dict(zip(self.reports, self.stale, strict=True)),
                "rows": {who: {name: states.row(name, who).clone() for name in names} for who in self.reports},
                "away": sorted(one.client for one in federation.flight.away),
                "staleness": trainer.loop.history.rows[-1]["buffer/staleness"],
            }
        )


def theta(model: dict[str, torch.Tensor], name: str) -> np.ndarray:
    """[W | b] of a model, or of a whole-model state of this name."""
    prefix = f"{name}." if name else ""
    weight, bias = model[f"{prefix}linear.weight"], model[f"{prefix}linear.bias"]
    return np.concatenate([weight.numpy(), bias.numpy()[:, None]], axis=1).copy()


# ---- against the oracle ----------------------------------------------------------------------------------------------

LOCALS: dict[str, Any] = {"lr": 0.05, "lr_decay": 0.9}
DUALS: dict[str, float] = {"dual_lr": 2.0, "tolerance_lr": 0.02}
CASES: dict[str, tuple[Any, oracle.Rule]] = {
    "FedAvg": (FedAvg, oracle.Rule()),
    "SCAFFOLD": (Scaffold, oracle.Rule("scaffold", weights="uniform")),
    "FedBC": (
        lambda *args, **local: FedBC(*args, dual_init=0.5, tolerance_init=0.01, **DUALS, **local),
        oracle.Rule("fedbc", weights="dual", dual=0.5, tolerance=0.01, **DUALS),
    ),
}


def traced(
    name: str, buffer: Buffer, rule: oracle.Rule, clock: Clock = CLOCK, **engine: Any
) -> tuple[list[Any], list[Any]]:
    """What fedlit does in every round, and what the oracle does."""
    problem, watch, sampler = Problem(SIZES), Watch(), UniformSampler()
    client = CASES[name][0](tiny_net(), batch_size=BATCH, local_epochs=EPOCHS, **LOCALS)
    run(client, problem.data, rounds=EVENTS, clock=clock, buffer=buffer, callbacks=[watch], eval_every=100, **engine)

    def choose(sending: int, free: Any, count: int) -> list[int]:
        drawn = sampler.select(0, sending, problem.data.sizes.numpy()[list(free)], count)
        return [free[k] for k in drawn.train]

    def seconds(step: int, client: int) -> float:
        work = clock.latency.work([problem.steps(client)], [problem.steps(client) / EPOCHS])
        return float(clock.latency.durations(0, step, [client], work)[0])

    given = oracle.Given(choose, lambda t, j: problem.batches(j, t, steps=problem.steps(j)), seconds)
    start = theta(dict(tiny_net().state_dict()), "")
    server = oracle.Server(
        problem.given, (start[:, :-1], start[:, -1]), given, Local(**LOCALS), rule, buffer.size, buffer.concurrency
    )
    return watch.events, server.run(EVENTS)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", CASES)
def test_every_step_matches_the_oracle(name: str, engine: str) -> None:
    options: dict[str, Any] = {"engine": engine} | ({"compiled": False, "lanes": 2} if engine == "vectorized" else {})
    ours, theirs = traced(name, Buffer(size=2, concurrency=4), CASES[name][1], **options)
    assert len(ours) == len(theirs) == EVENTS
    assert max(max(truth.staleness) for truth in theirs) >= 2, "some reports are stale"
    for event, truth in zip(ours, theirs, strict=True):
        assert event["time"] == pytest.approx(truth.time, abs=1e-10)
        assert event["clients"] == dict(zip(truth.clients, truth.staleness, strict=True))
        assert event["away"] == truth.away
        assert event["staleness"] == pytest.approx(np.mean(truth.staleness))
        np.testing.assert_allclose(event["z"], truth.z, rtol=0, atol=1e-10)
        for client, rows in event["rows"].items():
            if name == "SCAFFOLD":
                np.testing.assert_allclose(theta(rows, "control"), truth.own[client]["control"], rtol=0, atol=1e-10)
            if name == "FedBC":
                for number in ("dual", "tolerance"):
                    np.testing.assert_allclose(rows[number], truth.own[client][number], rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("buffer", "rule"),
    [
        (Buffer(size=1, concurrency=5, discount="constant"), oracle.Rule(discount="constant")),
        (Buffer(size=3, concurrency=8, discount="hinge"), oracle.Rule(discount="hinge", a=10.0, b=4.0)),
        (Buffer(size=1, concurrency=8, discount=Hinge(slope=0.3, grace=1)), oracle.Rule(discount="hinge", a=0.3, b=1)),
        (Buffer(size=2, concurrency=2, discount=Polynomial(2.0)), oracle.Rule(a=2.0)),
    ],
)
def test_other_sizes_and_discounts_match_the_oracle_too(buffer: Buffer, rule: oracle.Rule) -> None:
    for event, truth in zip(*traced("FedAvg", buffer, rule), strict=True):
        assert event["time"] == pytest.approx(truth.time, abs=1e-10)
        np.testing.assert_allclose(event["z"], truth.z, rtol=0, atol=1e-10)


def test_reports_of_one_moment_are_taken_in_before_anyone_is_sent_a_model() -> None:
    """Four are away and all come at once: the server steps twice at that moment, from one sending."""
    ours, theirs = traced("FedAvg", Buffer(size=2, concurrency=4), oracle.Rule(), EVEN)
    assert [event["time"] for event in ours] == pytest.approx([2.5, 2.5, 5.0, 5.0, 7.5, 7.5])
    assert [event["staleness"] for event in ours] == [0, 1, 0, 1, 0, 1]
    for event, truth in zip(ours, theirs, strict=True):
        assert event["clients"] == dict(zip(truth.clients, truth.staleness, strict=True))
        np.testing.assert_allclose(event["z"], truth.z, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("discount", "expected"),
    [
        ("constant", [1, 1, 1, 1, 1, 1]),
        ("polynomial", [1, 2**-0.5, 3**-0.5, 0.5, 5**-0.5, 6**-0.5]),
        ("hinge", [1, 1, 1, 1, 1, 1 / 11]),
        (Hinge(slope=1.0, grace=2), [1, 1, 1, 1 / 2, 1 / 3, 1 / 4]),
        (Polynomial(0), [1, 1, 1, 1, 1, 1]),
    ],
)
def test_discounts(discount: Any, expected: list[float]) -> None:
    found = Buffer(discount=discount).discounts(torch.arange(6))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-15)


# ---- the flat round as its limit -------------------------------------------------------------------------------------


def fitted(name: str, **options: Any) -> FederatedTrainer:
    """An algorithm of the conformance list on its tiny problem."""
    entry = ENTRIES[name]
    trainer = new_trainer(**({"rounds": 3, "engine": "sequential"} | entry.trainer | options))
    trainer.fit(entry.make(conformance_net(), **LOCAL), datamodule=conformance_data())
    return trainer


REFUSED = {
    "centralised": "pools everybody's data",
    "pFedMe, all train": "train that do not report",
    "FedBCD-I": "train that do not report",
}
TAKEN = [name for name in ENTRIES if name not in REFUSED]
QUICK = [name for name in KINDS if name in TAKEN]


@pytest.mark.usefixtures("few_inner_steps")
@pytest.mark.parametrize("name", slow_but(QUICK, TAKEN))
def test_all_in_flight_and_all_as_fast_is_the_flat_run_bit_for_bit(name: str) -> None:
    """C = K and equal seconds: every round is one sending of K, as in a flat run with clients_per_round = K."""
    flat = fitted(name, clock=EVEN, clients_per_round=3)
    buffered = fitted(name, clock=EVEN, buffer=Buffer(size=3, concurrency=3, discount="constant"))
    one, other = everything(flat), everything(buffered)
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[key]) for key, value in one.items())
    for row, again in zip(flat.loop.history.rows, buffered.loop.history.rows, strict=True):
        measured = {name for name in row if name == "time/sim_s" or not name.startswith("time/")}
        assert again["buffer/staleness"] == 0
        assert {name: again[name] for name in measured} == {name: row[name] for name in measured}


def test_a_compiled_or_vectorized_engine_has_the_same_limit() -> None:
    vectorized: dict[str, Any] = {"engine": "vectorized", "compiled": False, "lanes": 2}
    flat = fitted("FedAvg", clock=EVEN, clients_per_round=3, **vectorized)
    buffered = fitted("FedAvg", clock=EVEN, buffer=Buffer(size=3, concurrency=3), **vectorized)
    assert all(torch.equal(value, everything(buffered)[key]) for key, value in everything(flat).items())


# ---- every algorithm -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("few_inner_steps")
@pytest.mark.parametrize("name", slow_but(QUICK, TAKEN))
def test_every_algorithm_is_resumed_to_the_same_bits(name: str) -> None:
    replaces = name == "FedBCD"  # its server averages the last models of all clients: nothing to discount
    buffer = Buffer(size=2, concurrency=3, discount="constant") if replaces else SMALL
    found = checks.resumes_exactly(ENTRIES[name].make, ENTRIES[name].trainer | {"clock": CLOCK, "buffer": buffer})
    assert found.passed, found


def test_some_reports_of_the_small_buffer_are_stale_and_some_clients_are_away_at_the_end() -> None:
    """Else a resume has nothing to restore."""
    whole = fitted("FedAvg", clock=CLOCK, buffer=SMALL, rounds=4)
    assert max(row["buffer/staleness"] for row in whole.loop.history.rows) > 0
    assert len(whole.loop.federation.flight.away) > 0


def flown(trainer: FederatedTrainer) -> dict[str, Any]:
    """All that a run with clients in flight came to."""
    return everything(trainer) | {"federation": trainer.loop.federation.state_dict()}


@pytest.mark.parametrize("name", REFUSED)
def test_an_algorithm_that_makes_no_sense_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ConfigError, match=REFUSED[name]):
        fitted(name, clock=CLOCK, buffer=SMALL)


def test_fedbcdi_without_offline_clients_is_taken() -> None:
    client = FedBCDI(conformance_net(), offline_clients=1, **LOCAL)
    trainer = new_trainer(rounds=3, engine="sequential", clock=CLOCK, buffer=SMALL)
    trainer.fit(client, datamodule=conformance_data())
    assert trainer.loop.rounds_done == 3


def test_the_server_sends_what_it_has_at_that_moment() -> None:
    """FedFor's last move is that of the step before a client was sent its model, also where it reports later."""
    given: dict[tuple[int, int], torch.Tensor] = {}
    moves: dict[int, torch.Tensor] = {}
    stale = []

    class Sent(ServerCallback):
        decides = False

        def on_cohort_start(self, trainer: Any, client: Any, cohort: Any) -> None:
            for k, who in enumerate(cohort.clients):
                given[cohort.round, who] = cohort.sent["last_move.linear.bias"][k].clone()
            moves[cohort.round] = self.server.callbacks[0].move.get("linear.bias")  # type: ignore[attr-defined]

        def on_cohort_trained(self, trainer: Any, client: Any, cohort: Any) -> None:
            for k, who in enumerate(cohort.clients):
                assert torch.equal(cohort.sent["last_move.linear.bias"][k], given[cohort.draw_rounds[k], who])
            stale.extend(cohort.staleness.tolist())

        def on_round_metrics(self, trainer: Any, client: Any, cohort: Any, metrics: Any) -> None:
            if cohort is not None:
                z = self.server.z["linear.bias"]
                moves[cohort.round + 1] = self.before - z
            self.before = self.server.z["linear.bias"]

    trainer = new_trainer(rounds=5, engine="sequential", clock=CLOCK, buffer=SMALL, callbacks=[Sent()])
    trainer.fit(FedFor(conformance_net(), strength=1.0, **LOCAL), datamodule=conformance_data())
    assert max(stale) >= 1
    for (round, who), sent in given.items():
        steps = torch.tensor([LOCAL["local_epochs"] * -(-size // LOCAL["batch_size"]) for size in (7, 11, 15, 20)])[who]
        if round:
            torch.testing.assert_close(sent * LOCAL["lr"] * steps, moves[round], rtol=1e-12, atol=1e-14)
        else:
            assert not sent.any()


def test_a_rate_that_decays_is_that_of_the_sending() -> None:
    """q-FedAvg's step length reads each client's own rate."""
    seen = []

    class Rates(ServerCallback):
        decides = False

        def on_cohort_trained(self, trainer: Any, client: Any, cohort: Any) -> None:
            rates = torch.as_tensor(cohort.rate).expand(len(cohort.clients)).tolist()
            seen.append((cohort.lr, rates, [0.1 * 0.5 ** cohort.draw_rounds[k] for k in range(len(cohort.clients))]))

    trainer = new_trainer(rounds=5, engine="sequential", clock=CLOCK, buffer=SMALL, callbacks=[Rates()])
    trainer.fit(QFedAvg(conformance_net(), lr_decay=0.5, **LOCAL), datamodule=conformance_data())
    assert any(len(set(rates)) > 1 for _, rates, _ in seen)
    for lr, rates, expected in seen:
        assert rates == pytest.approx(expected)
        assert lr == pytest.approx(np.mean(expected))


@pytest.mark.parametrize("keep_local", ["none", "norm"])
def test_statistics_and_what_stays_with_clients_are_sent_and_averaged(keep_local: str, tmp_path: Path) -> None:
    """BatchNorm: a client trains on the statistics that it was sent; the server averages those that come back."""

    class Statistics(ServerCallback):
        decides = False

        def on_server_step_end(self, trainer: Any, client: Any, cohort: Any) -> None:
            mean = torch.tensordot(cohort.weights.double(), cohort.buffers["norm.running_mean"], dims=1)
            expected = torch.zeros_like(mean) if keep_local == "norm" else mean
            torch.testing.assert_close(self.server.buffers["norm.running_mean"], expected, rtol=0, atol=1e-12)

    ended = []
    for rounds, start in ((5, None), (2, None), (5, tmp_path / "half.ckpt")):
        torch.manual_seed(3)
        client = FedAvg(Normed().double(), keep_local=keep_local, **LOCAL)
        trainer = new_trainer(rounds=rounds, engine="sequential", clock=CLOCK, buffer=SMALL, callbacks=[Statistics()])
        trainer.fit(client, datamodule=conformance_data(), ckpt_path=start)
        trainer.save_checkpoint(tmp_path / "half.ckpt")
        ended.append(flown(trainer))
    assert_same_bits(ended[0], ended[2])


class Normed(torch.nn.Module):
    """Softmax regression on normalised features."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        logits: torch.Tensor = self.linear(self.norm(x))
        return logits


# ---- clients in flight survive ---------------------------------------------------------------------------------------


def flying(folder: Path | None, rounds: int, **options: Any) -> FederatedTrainer:
    """SCAFFOLD with an adaptive server and clients in flight, as a run that can be resumed."""
    common: dict[str, Any] = {"clock": CLOCK, "buffer": Buffer(size=2, concurrency=5), "checkpoint_every": 1}
    client = Scaffold(tiny_net(), lr=0.05, batch_size=4, local_epochs=1, lr_decay=0.9)
    trainer = {"server_optimizer": FedAdam(lr=0.1), "run": folder, "rounds": rounds}
    return run(client, Problem(SIZES).data, **(common | trainer | options))


@pytest.mark.parametrize("stop", slow_but([1, 4], range(1, EVENTS)))
def test_a_run_is_resumed_at_every_round_to_the_same_bits(tmp_path: Path, stop: int) -> None:
    whole = flying(None, EVENTS)
    half = flying(tmp_path, stop)
    assert len(half.loop.federation.flight.away) == 4, "the K-th report's place is filled when the next round begins"
    resumed = flying(tmp_path, EVENTS, resume=True)
    assert_same_bits(flown(whole), flown(resumed))


def test_a_round_in_which_nobody_is_sent_a_model_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    """Four report at once: the second step follows without a sending, and FedFor's server must know z before it."""
    common: dict[str, Any] = {"clock": EVEN, "buffer": Buffer(size=2, concurrency=4), "engine": "sequential"}
    whole, half, again = (new_trainer(rounds=rounds, **common) for rounds in (4, 1, 4))
    for trainer in (whole, half):
        trainer.fit(FedFor(conformance_net(), strength=1.0, **LOCAL), datamodule=conformance_data())
    half.save_checkpoint(tmp_path / "half.ckpt")
    client = FedFor(conformance_net(), strength=1.0, **LOCAL)
    again.fit(client, datamodule=conformance_data(), ckpt_path=tmp_path / "half.ckpt")
    assert_same_bits(flown(whole), flown(again))
    assert_same_bits(*(trainer.loop.server.callbacks[0].state_dict() for trainer in (whole, again)))


def test_a_discount_is_given_on_the_command_line_by_name_or_class(workplace: Path) -> None:
    buffers = [
        FitCLI(resolve_configs(f"--config synthetic_fedbuff_fedavg {words}".split())).trainer.buffer
        for words in ("", "--trainer.buffer.discount Hinge --trainer.buffer.discount.init_args.slope 2")
    ]
    assert buffers == [
        Buffer(size=5, concurrency=15, discount="polynomial"),
        Buffer(size=5, concurrency=15, discount=Hinge(slope=2.0)),
    ]


def test_what_makes_no_sense_is_one_paragraph_on_the_command_line(refusal: Any) -> None:
    words = "fit --config synthetic_fedbuff_fedavg.yaml --run run"
    assert "size is 16" in refusal(f"{words} --trainer.buffer.size 16")
    assert "Did you mean 'hinge'" in refusal(f"{words} --trainer.buffer.discount hinges")
    assert "no trainer.clock" in refusal(f"{words} --trainer.clock null")


def test_what_all_received_is_kept_and_saved_once(tmp_path: Path) -> None:
    trainer = flying(None, 3)
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    saved = torch.load(tmp_path / "saved.ckpt", weights_only=True)["loops"]["fit_loop"]["federation"]["flight"]
    for flight in (trainer.loop.federation.flight, InFlight.from_state(saved)):
        models = {(one.cohort.round, one.cohort.received["linear.weight"].data_ptr()) for one in flight.away}
        assert len(models) == len({one.cohort.round for one in flight.away}) < len(flight.away)


FAILING = [
    *("on_cohort_start", "on_cohort_trained", "on_pseudo_gradient", "on_server_step_end", "on_users_measured"),
    *("on_round_metrics", "the sampler", "Client.local_work", "first step of a client", "a step, vectorized"),
    *("a client that is not finite", "the weighting", "the server's optimiser", "evaluation", "append_metrics"),
    *("rotate_checkpoint", "Ctrl-C at once"),
]


_UNDISTURBED: dict[str, dict[int, Any]] = {}


def undisturbed(tmp_path: Path, engine: str, options: dict[str, Any]) -> dict[int, Any]:
    """The state after every round of a run in which nothing fails; each engine's once."""
    if engine not in _UNDISTURBED:
        parts, recorder = sound(tmp_path / "whole", engine), Recorder()
        parts.options["callbacks"].append(recorder)
        FederatedTrainer(**parts.options | options).fit(parts.client, datamodule=parts.data)
        _UNDISTURBED[engine] = recorder.states
    return _UNDISTURBED[engine]


@pytest.mark.parametrize("name", FAILING)
def test_a_round_that_fails_leaves_who_is_in_flight(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point, options = POINTS[name], {"clock": CLOCK, "buffer": SMALL}
    truth = undisturbed(tmp_path, point.engine, options)
    parts = arranged(point, tmp_path / "run", monkeypatch)
    trainer = FederatedTrainer(**parts.options | options)
    with pytest.raises(BaseException) as failure:  # noqa: PT011  # each point raises its own
        trainer.fit(parts.client, datamodule=parts.data)
    assert not isinstance(failure.value, AssertionError), failure.value
    assert parts.fuse.blown
    assert trainer.loop.rounds_done == point.finished
    assert len(trainer.loop.federation.flight.away) > 0
    assert same(state_of(trainer), truth[point.finished])

    monkeypatch.undo()
    again = sound(tmp_path / "run", point.engine)
    for key in ("weights", "sampler", "server_optimizer"):
        again.options |= {key: parts.options[key]} if key in parts.options else {}
    resumed = FederatedTrainer(**again.options | options, resume=True)
    resumed.fit(again.client, datamodule=again.data)
    assert same(state_of(resumed), truth[ROUNDS])


def test_a_killed_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    words = (
        "fit --config synthetic_fedbuff_fedavg.yaml --trainer.rounds 12 --trainer.checkpoint_every 1 --wandb disabled "
        "--data.num_clients 8 --trainer.buffer.size 2 --trainer.buffer.concurrency 6 --model.local_epochs 2 "
        f"--trainer.enable_progress_bar false {SEQUENTIAL} --run"
    )
    finish(f"{words} {tmp_path / 'whole'}")
    assert stopped(f"{words} {tmp_path / 'run'}", tmp_path / "run", 6, signal.SIGKILL) == -signal.SIGKILL
    assert 3 <= rounds_saved(tmp_path / "run") < 12
    finish(f"{words} {tmp_path / 'run'} --resume")
    assert_same_bits(outcome(tmp_path / "run"), outcome(tmp_path / "whole"))
    flights = [
        torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["loops"]["fit_loop"]["federation"]
        for folder in (tmp_path / "run", tmp_path / "whole")
    ]
    assert len(flights[0]["flight"]["away"]) == 5
    assert_same_bits(*flights)


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clock": None}, "no trainer.clock"),
        ({"cloud": Cloud(servers=2)}, "trainer.cloud has several"),
        ({"buffer": Buffer(size=2, concurrency=9)}, "concurrency is 9, but .* only 8 clients"),
        ({"clock": Clock(CLOCK.latency, deadline=3.0)}, "deadline or dropout"),
        ({"clock": Clock(CLOCK.latency, dropout=0.1)}, "deadline or dropout"),
        ({"sampler": "all"}, "AllSampler.*'uniform', 'size' or 'earliest'"),
        ({"sampler": FixedSampler([0, 1, 2])}, "FixedSampler"),
        ({"sampler": QuotaSampler(groups=1)}, "QuotaSampler"),
    ],
)
def test_what_makes_no_sense_is_refused_before_any_training(options: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"clock": CLOCK, "buffer": Buffer(size=2, concurrency=3)}
    with pytest.raises(ConfigError, match=words):
        run(small_client(), Problem(SIZES).data, **(given | options))


def small_client() -> Client:
    return FedAvg(tiny_net(), lr=0.05, batch_size=4)


def test_a_discount_without_effect_is_refused() -> None:
    with pytest.raises(ConfigError, match="BlockAverage puts an average"):
        run(FedBCD(tiny_net(), lr=0.05), Problem(SIZES).data, clock=CLOCK, buffer=SMALL)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Buffer(size=5, concurrency=4), "size is 5, but only 4 clients are in flight"),
        (lambda: Buffer(size=0), "size is 0"),
        (lambda: Buffer(discount="polynomal"), "Did you mean 'polynomial'"),
        (lambda: Polynomial(float("nan")), "power is nan"),
        (lambda: Polynomial(-1), "power is -1"),
        (lambda: Hinge(slope=float("nan")), "slope is nan"),
        (lambda: Hinge(grace=float("inf")), "grace is inf"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.parametrize("sampler", ["size", "earliest", "uniform", "all"])
def test_other_samplers_choose_among_those_who_are_free(sampler: str) -> None:
    watch = Watch()
    buffer = Buffer(size=3, concurrency=8)
    run(small_client(), Problem(SIZES).data, clock=CLOCK, buffer=buffer, sampler=sampler, callbacks=[watch])
    for event in watch.events:
        assert len(event["clients"]) == 3
        assert not set(event["clients"]) & set(event["away"])
