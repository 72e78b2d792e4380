"""What a client sends can differ from what it keeps; and what a client may do between two phases of its round."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from examples.topk import TopK
from fedlit import (
    SGD,
    Buffer,
    Client,
    Clock,
    Cloud,
    Cohort,
    Ditto,
    Exponential,
    FedAvg,
    FedBCD,
    FedDyn,
    FederatedTrainer,
    Latency,
    Scaffold,
    ServerCallback,
    TrainedCohort,
)
from fedlit.client.step import Phase
from fedlit.errors import ConfigError
from tests.problems import SIZES, kept_rows, largest_difference, run, tiny_data, tiny_net, weights_of
from tests.trainer.test_resume import assert_same_bits

LOCAL: dict[str, Any] = {"lr": 0.1, "batch_size": 4, "local_epochs": 1}
CLOCK = Clock(Latency(arrival=Exponential(2.0), compute=Exponential(1.0)))
SERVERS: dict[str, dict[str, Any]] = {
    "flat": {},
    "buffer": {"clock": CLOCK, "buffer": Buffer(size=2, concurrency=4)},
    "cloud": {"cloud": Cloud(servers=2), "clients_per_round": 2, "server_optimizer": SGD(0.5)},
    "asynchronous cloud": {
        "cloud": Cloud(servers=3, first=2),
        "clock": CLOCK,
        "clients_per_round": 2,
        "server_optimizer": SGD(0.5),
    },
}
EIGHT = SIZES * 2


def rounded(value: Tensor) -> Tensor:
    """Two digits."""
    return (value * 100).round() / 100


class Rounds(ServerCallback):
    """Sends two digits of every number, in two bytes each."""

    def on_cohort_trained(self, trainer: Any, client: Client, cohort: TrainedCohort) -> None:
        for name, value in cohort.params.items():
            cohort.sent_params[name] = rounded(value)
        cohort.sent_bytes = torch.full((len(cohort.clients),), 2.0 * client.model_numbers, dtype=torch.float64)


class RoundsForGood(ServerCallback):
    """The same, and the client keeps no more than that either."""

    def on_cohort_trained(self, trainer: Any, client: Client, cohort: TrainedCohort) -> None:
        cohort.params = {name: rounded(value) for name, value in cohort.params.items()}


def fitted(callback: ServerCallback | None = None, client: Client | None = None, **options: Any) -> FederatedTrainer:
    callbacks = [callback] if callback is not None else []
    return run(client or FedAvg(tiny_net(), **LOCAL), tiny_data(EIGHT), callbacks=callbacks, **options)


def local_models(trainer: FederatedTrainer) -> dict[str, Tensor]:
    return {name: value for name, value in kept_rows(trainer).items() if name.startswith("local.")}


@pytest.mark.parametrize("servers", SERVERS)
def test_server_averages_what_is_sent_and_the_client_keeps_its_own(servers: str) -> None:
    sends, keeps, plain = (fitted(one, **SERVERS[servers]) for one in (Rounds(), RoundsForGood(), None))
    assert largest_difference(weights_of(sends), weights_of(keeps)) <= 1e-15
    assert largest_difference(weights_of(sends), weights_of(plain)) > 1e-4
    own, poor = local_models(sends), local_models(keeps)
    assert all(torch.equal(value, rounded(value)) for value in poor.values())
    assert largest_difference(own, poor) > 1e-3
    assert largest_difference({k: rounded(v) for k, v in own.items()}, poor) <= 1e-12


@pytest.mark.parametrize("servers", SERVERS)
def test_bytes_of_what_is_sent_are_counted(servers: str) -> None:
    client = Scaffold(tiny_net(), **LOCAL)
    whole, less = (fitted(one, Scaffold(tiny_net(), **LOCAL), **SERVERS[servers]) for one in (None, Rounds()))
    down, up = client.traffic()
    for before, after in zip(whole.loop.history.rows[1:], less.loop.history.rows[1:], strict=True):
        reporting = before["comm/up_mb"] * 1e6 / (8 * up)
        saved = reporting * client.model_numbers * (8 - 2)  # the control variate and n_i are sent as ever
        assert (before["comm/up_mb"] - after["comm/up_mb"]) * 1e6 == pytest.approx(saved)
        assert after["comm/down_mb"] == before["comm/down_mb"]


def test_local_accuracy_does_not_see_what_is_sent() -> None:
    """In the first round everyone starts at the same model, so that the clients' own models are the same."""
    one, other = (fitted(callback, rounds=1, clients_per_round=8) for callback in (None, Rounds()))
    assert one.loop.history.rows[1]["local/acc"] == other.loop.history.rows[1]["local/acc"]
    assert one.loop.history.rows[1]["global/loss"] != other.loop.history.rows[1]["global/loss"]


@pytest.mark.parametrize("servers", SERVERS)
def test_run_that_sends_sparse_moves_is_resumed_to_the_same_bits(servers: str, tmp_path: Path) -> None:
    options = SERVERS[servers] | {"checkpoint_every": 1}
    whole = fitted(None, TopK(tiny_net(), share=0.3, **LOCAL), rounds=4, **options)
    fitted(None, TopK(tiny_net(), share=0.3, **LOCAL), rounds=2, run=tmp_path, **options)
    resumed = fitted(None, TopK(tiny_net(), share=0.3, **LOCAL), rounds=4, run=tmp_path, resume=True, **options)
    assert_same_bits(kept_rows(whole), kept_rows(resumed))
    assert_same_bits(whole.loop.federation.state_dict(), resumed.loop.federation.state_dict())
    sent = [[row["comm/up_mb"] for row in trainer.loop.history.rows[1:]] for trainer in (whole, resumed)]
    assert sent[0] == sent[1]


def test_servers_term_of_feddyn_is_made_of_what_was_sent() -> None:
    sends, keeps = (fitted(one, FedDyn(tiny_net(), **LOCAL), rounds=1) for one in (Rounds(), RoundsForGood()))
    assert largest_difference(weights_of(sends), weights_of(keeps)) <= 1e-15


class Sends(ServerCallback):
    """Fills the cohort's field with something."""

    def __init__(self, field: str, value: Any) -> None:
        self.field, self.value = field, value

    def on_cohort_trained(self, trainer: Any, client: Client, cohort: TrainedCohort) -> None:
        setattr(cohort, self.field, self.value)


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        (Sends("sent_params", {"linear.wieght": torch.ones(3)}), "'linear.wieght' .* the net has no such parameter"),
        (Sends("sent_params", {"linear.bias": torch.ones(3)}), r"shape \(3,\) .* the clients' models have \(3, 3\)"),
        (Sends("sent_bytes", torch.ones(2)), "gave 2 numbers as cohort.sent_bytes, but the cohort has 3 clients"),
    ],
    ids=["unknown", "one row", "bytes"],
)
def test_what_does_not_fit_the_models_is_refused(callback: ServerCallback, words: str) -> None:
    with pytest.raises(ConfigError, match=f"Round 1: a callback .*{words}"):
        fitted(callback)


def test_what_the_server_would_not_read_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="filled cohort.sent_params, but BlockAverage averages the clients' own models"
    ):
        fitted(Rounds(), FedBCD(tiny_net(), **LOCAL))


# ---- between phases --------------------------------------------------------------------------------------------------


class Resting(Ditto):
    """Ditto whose personal model goes half of its way, and whose local model is pulled back to what was received."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seen: list[tuple[str, bool]] = []

    def on_phase_end(self, cohort: TrainedCohort, phase: Phase) -> None:
        self.seen.append((phase.name, cohort.params is not cohort.received))
        if phase.name == "personal":
            cohort.state |= {name: 0.5 * value for name, value in cohort.state.items() if name.startswith("personal.")}
        else:
            cohort.params = {name: 0.5 * (value + cohort.received[name]) for name, value in cohort.params.items()}


ENGINES: dict[str, dict[str, Any]] = {
    "sequential": {"engine": "sequential"},
    "vectorized": {"engine": "vectorized", "compiled": False, "lanes": 2, "workers": 1},
}


@pytest.mark.parametrize("engine", ENGINES)
def test_client_has_the_word_after_every_phase(engine: str) -> None:
    client = Resting(tiny_net(), prox=0.5, **LOCAL)
    trainer = run(client, rounds=1, **ENGINES[engine])
    plain = run(Ditto(tiny_net(), prox=0.5, **LOCAL), rounds=1, **ENGINES[engine])
    assert client.seen == [("personal", False), ("local", True)]
    rows, others = kept_rows(trainer), kept_rows(plain)
    start = dict(tiny_net().named_parameters())
    for name in start:
        assert torch.equal(rows[f"personal.{name}"], 0.5 * others[f"personal.{name}"])
        assert torch.equal(rows[f"local.{name}"], 0.5 * (others[f"local.{name}"] + start[name].detach()))
    half = {name: 0.5 * (value + start[name].detach()) for name, value in weights_of(plain).items()}
    assert largest_difference(weights_of(trainer), half) <= 1e-15


class FromChanged(Client):
    """Two solves, the second from where the first ended, and a state that the hook writes in between."""

    def state_spec(self) -> dict[str, float]:
        return {"between": 0.0}

    def phases(self) -> list[Phase]:
        return [Phase("first"), Phase("second", start="trained", stream=1)]

    def on_phase_end(self, cohort: TrainedCohort, phase: Phase) -> None:
        if phase.name == "first":
            cohort.params = {name: torch.zeros_like(value) for name, value in cohort.params.items()}
        cohort.state["between"] = cohort.state["between"] + 1

    def training_step(self, batch: Any, batch_idx: Any) -> Tensor:
        return self.task_loss(batch) * (1 + self.between)  # type: ignore[operator]  # a buffer in a step


@pytest.mark.parametrize("servers", SERVERS)
def test_next_phase_starts_from_what_the_hook_left(servers: str) -> None:
    one, other = (
        fitted(None, FromChanged(tiny_net(), **LOCAL), **SERVERS[servers] | engine) for engine in ENGINES.values()
    )
    assert largest_difference(weights_of(one), weights_of(other)) <= 1e-10
    assert largest_difference(kept_rows(one), kept_rows(other)) <= 1e-10
    assert set((kept_rows(one)["between"] % 2).tolist()) == {0.0}


class Fails(FromChanged):
    def on_phase_end(self, cohort: TrainedCohort, phase: Phase) -> None:
        super().on_phase_end(cohort, phase)
        if phase.name == "second" and cohort.number == 2:
            raise ValueError("a mistake of the user")


def test_round_that_fails_between_phases_leaves_the_last_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a mistake of the user") as failed:
        fitted(None, Fails(tiny_net(), **LOCAL), run=tmp_path, rounds=3)
    assert failed.value.__notes__ == ["This happened in round 2, in on_phase_end of Fails (second)."]
    left = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)["loops"]["fit_loop"]
    one = fitted(None, FromChanged(tiny_net(), **LOCAL), rounds=1)
    assert left["rounds"] == 1
    assert_same_bits(left["clients"]["rows"], kept_rows(one))


def test_client_that_no_phase_has_trained_keeps_its_rows() -> None:
    class Idle(FromChanged):
        def local_work(self, cohort: Cohort, planned: Any, generator_of: Any) -> Any:
            return planned * (cohort.sizes.numpy() > 8)

    trainer = run(Idle(tiny_net(), **LOCAL), tiny_data((7, 12, 16, 23)), clients_per_round=4, rounds=1)
    assert trainer.loop.states.touched == [1, 2, 3]
    assert trainer.loop.history.rows[1]["state/between_mean"] == (0 + 2 + 2 + 2) / 4
