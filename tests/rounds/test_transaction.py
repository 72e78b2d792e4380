"""A round is a transaction: whatever raises, memory and disk are those of the last finished round, and resume is exact.

Every point at which something can raise is one line of POINTS. Each is tried in round 3 of a run with all that can be
lost: client rows, a server's control variates, momentum of the server's optimiser, a best model, a user's counter,
simulated time.
"""

import csv
import errno
import os
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from torch import Tensor

from fedlit import (
    Client,
    Clock,
    Cohort,
    Ditto,
    Exponential,
    FedAvgM,
    FedBCDI,
    FedDyn,
    FederatedTrainer,
    Latency,
    Scaffold,
    ServerCallback,
    TrainedCohort,
    Uniform,
    WeighedCohort,
)
from fedlit.client.states import ClientStates
from fedlit.data.base import FederatedDataModule
from fedlit.errors import FedlitError
from fedlit.evaluation.evaluator import Evaluator
from fedlit.params import clone
from fedlit.results.folder import RunFolder
from fedlit.server.optimizers import ServerOptimizer
from fedlit.server.sampling import UniformSampler
from fedlit.server.weights import Weighed
from tests.problems import tiny_data, tiny_net

ROUNDS, BAD = 5, 3
LOCAL: dict[str, Any] = {"lr": 0.05, "batch_size": 4, "local_steps": 3}
SERVER_HOOKS = ("on_cohort_start", "on_cohort_trained", "on_pseudo_gradient", "on_server_step_end", "on_users_measured")
LIGHTNING_HOOKS = (
    *("on_train_epoch_start", "on_train_batch_start", "on_before_optimizer_step", "on_train_batch_end"),
    *("on_validation_start", "on_validation_end", "on_train_epoch_end"),
)


class Fault(Exception):
    """What is raised on purpose."""


class Fuse:
    """Raises once, when it is asked to in round `BAD` for the n-th time; or from then on."""

    def __init__(self) -> None:
        self.round = 0
        self.blown = False
        self.lasts = False
        self.wait = 0
        self.error: BaseException = Fault("on purpose")

    def blow(self) -> None:
        if self.round != BAD or (self.blown and not self.lasts):
            return
        if self.wait:
            self.wait -= 1
            return
        self.blown = True
        raise self.error


class Counter(ServerCallback):
    """A user's callback that keeps a number, changes it early in a round, and raises where it is told to."""

    metrics = ("mine/count",)

    fuse: Fuse
    hook = ""

    def __init__(self) -> None:
        self.count = 0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.fuse.round = trainer.current_epoch + 1
        self.raises("on_train_epoch_start")

    def on_cohort_start(self, trainer: Trainer, client: Client, cohort: Cohort) -> None:
        self.count += len(cohort.clients)
        self.raises("on_cohort_start")

    def on_round_metrics(
        self, trainer: Trainer, client: Client, cohort: WeighedCohort | None, metrics: dict[str, float]
    ) -> None:
        metrics["mine/count"] = self.count
        self.raises("on_round_metrics")
        if self.hook == "undeclared metric" and self.fuse.round == BAD:
            metrics["mine/other"] = 1.0

    def evaluated_model(self) -> dict[str, Tensor]:
        self.raises("evaluated_model")
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count = state_dict["count"]

    def raises(self, hook: str) -> None:
        if hook == self.hook:
            self.fuse.blow()


def raising(hook: str) -> Callable[..., None]:
    return lambda self, *_, **__: self.raises(hook)


for name in {*SERVER_HOOKS, *LIGHTNING_HOOKS} - set(vars(Counter)):
    setattr(Counter, name, raising(name))


@dataclass
class Parts:
    """A run before it starts; a point puts a part that raises in place of a sound one."""

    fuse: Fuse
    client: Client
    data: FederatedDataModule
    options: dict[str, Any]


def sound(folder: Path, engine: str = "sequential", make: Callable[..., Client] = Scaffold, hook: str = "") -> Parts:
    fuse, counter = Fuse(), Counter()
    counter.fuse, counter.hook = (
        fuse,
        hook,
    )  # not arguments: a run is known by those, and the resumed one is the same run
    options: dict[str, Any] = {
        "rounds": ROUNDS,
        "clients_per_round": 3,
        "engine": engine,
        "precision": "64-true",
        "initial_weights": "net",
        "server_optimizer": FedAvgM(),
        "clock": Clock(Latency(arrival=Exponential(2.0), compute=Exponential(1.0))),
        "callbacks": [counter],
        "run": folder,
        "checkpoint_every": 1,
        "eval_every": 1,
        "enable_progress_bar": False,
    }
    options |= {"lanes": 2, "compiled": False} if engine == "vectorized" else {}
    return Parts(fuse, make(tiny_net(), **LOCAL), tiny_data(val_fraction=0.2), options)


def state_of(trainer: FederatedTrainer) -> dict[str, Any]:
    """All that is saved, but for the seconds that rounds took."""
    state = deepcopy(trainer.loop.state_dict())
    values, columns = state["history"]["values"], state["history"]["columns"]
    values[:, [k for k, name in enumerate(columns) if name.startswith("time/")]] = 0
    counters = [callback.count for callback in trainer.callbacks if isinstance(callback, Counter)]
    return state | {"optimizer": deepcopy(trainer.loop.server.optimizer.state_dict()), "counters": counters}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(torch.nan_to_num(a, nan=-1.0), torch.nan_to_num(b, nan=-1.0))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


class Recorder(ServerCallback):
    """The state after every round of an undisturbed run."""

    decides = False

    def __init__(self) -> None:
        self.states: dict[int, Any] = {}

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.states[trainer.loop.rounds_done] = state_of(trainer)


_UNDISTURBED: dict[Any, dict[int, Any]] = {}


def undisturbed(tmp_path: Path, engine: str, make: Callable[..., Client]) -> dict[int, Any]:
    if (engine, make) not in _UNDISTURBED:
        parts, recorder = sound(tmp_path / "undisturbed", engine, make), Recorder()
        parts.options["callbacks"].append(recorder)
        FederatedTrainer(**parts.options).fit(parts.client, datamodule=parts.data)
        _UNDISTURBED[engine, make] = recorder.states
    return _UNDISTURBED[engine, make]


# ---- the points ----------------------------------------------------------------------------------------------------


def before(fuse: Fuse, owner: Any, name: str, *, after: bool = False) -> None:
    """Let the fuse blow before (or after) a method of this object does its work."""
    real = getattr(owner, name)

    def method(*args: Any, **kwargs: Any) -> Any:
        if not after:
            fuse.blow()
        result = real(*args, **kwargs)
        if after:
            fuse.blow()
        return result

    owner.__dict__[name] = method


class HalfDone(torch.optim.SGD):
    """Moves z, then raises."""

    fuse: Fuse

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        self.fuse.blow()


class HalfDoneOptimizer(ServerOptimizer):
    fuse: Fuse

    def build(self, params: Any) -> torch.optim.Optimizer:
        optimizer = HalfDone(params, lr=1.0, momentum=0.9)
        optimizer.fuse = self.fuse
        return optimizer


class FaultyWeighting(Uniform):
    fuse: Fuse
    answer: list[float] | None = None

    def weigh(self, cohort: TrainedCohort) -> Weighed:
        if self.answer is not None and self.fuse.round == BAD and not self.fuse.blown:
            self.fuse.blown = True
            return Weighed(torch.tensor(self.answer, dtype=torch.float64))
        self.fuse.blow()
        return super().weigh(cohort)


class FaultySampler(UniformSampler):
    fuse: Fuse

    def choose(self, rng: np.random.Generator, sizes: np.ndarray, count: int) -> Any:
        self.fuse.blow()
        return super().choose(rng, sizes, count)


class FaultyLogger(CSVLogger):
    fuse: Fuse

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:  # type: ignore[override]
        self.fuse.blow()
        super().log_metrics(metrics, step)


def weigh(parts: Parts, answer: list[float] | None = None) -> None:
    weighting = parts.options["weights"] = FaultyWeighting()
    weighting.fuse, weighting.answer = parts.fuse, answer


def step_of_the_server(parts: Parts) -> None:
    optimizer = parts.options["server_optimizer"] = HalfDoneOptimizer()
    optimizer.fuse = parts.fuse


def draw(parts: Parts) -> None:
    sampler = parts.options["sampler"] = FaultySampler()
    sampler.fuse = parts.fuse


def log(parts: Parts) -> None:
    logger = FaultyLogger(str(parts.options["run"].parent / "csv"))
    logger.fuse = parts.fuse
    parts.options["logger"] = logger


def step(method: str, nth: int) -> Callable[[Parts], None]:
    def arrange(parts: Parts) -> None:
        parts.fuse.wait = nth
        before(parts.fuse, parts.client, method, after=True)

    return arrange


def client_method(name: str) -> Callable[[Parts], None]:
    return lambda parts: before(parts.fuse, parts.client, name)


def no_number(parts: Parts) -> None:
    """A client whose model is not finite."""
    real = parts.client.training_step

    def method(batch: Any, batch_idx: Any) -> Any:
        output = real(batch, batch_idx)
        if parts.fuse.round == BAD and not parts.fuse.blown:
            parts.fuse.blown = True
            output["loss"] = output["loss"] * torch.nan
        return output

    parts.client.__dict__["training_step"] = method


def full_disk(name: str) -> Callable[[Parts, pytest.MonkeyPatch], None]:
    def arrange(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
        parts.fuse.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        method = getattr(RunFolder, name)

        def full(self: RunFolder, *args: Any, **kwargs: Any) -> Any:
            parts.fuse.blow()
            return method(self, *args, **kwargs)

        monkeypatch.setattr(RunFolder, name, full)

    return arrange


def full_disk_in_a_line(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the row is written."""
    write = os.write

    def half(fd: int, data: bytes) -> int:
        if parts.fuse.round == BAD and not parts.fuse.blown and data.startswith(b"%d," % BAD):
            parts.fuse.blown = True
            return write(fd, data[: len(data) // 2])
        return write(fd, data)

    monkeypatch.setattr(os, "write", half)


def evaluation(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Evaluator.rows_of_each

    def rows_of_each(self: Evaluator, *args: Any) -> Any:
        parts.fuse.blow()
        return real(self, *args)

    monkeypatch.setattr(Evaluator, "rows_of_each", rows_of_each)


def ever_after(wait: int) -> Callable[[Parts], None]:
    """The hook raises from its n-th call in the round on."""

    def arrange(parts: Parts) -> None:
        parts.fuse.wait, parts.fuse.lasts = wait, True

    return arrange


def rows_of_clients(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row of metrics.csv is written then."""
    real = ClientStates.commit

    def commit(self: ClientStates) -> None:
        parts.fuse.blow()
        real(self)

    monkeypatch.setattr(ClientStates, "commit", commit)


def data_rows(parts: Parts) -> None:
    before(parts.fuse, parts.data, "load")


def interrupted(parts: Parts) -> None:
    parts.fuse.error = KeyboardInterrupt()
    weigh(parts)


def stop_iteration(parts: Parts) -> None:
    parts.fuse.error = StopIteration()
    weigh(parts)


@dataclass(frozen=True)
class Point:
    """Where something raises, and how many rounds are finished then."""

    arrange: Callable[..., None] = lambda parts: None
    hook: str = ""
    finished: int = BAD - 1
    engine: str = "sequential"
    make: Callable[..., Client] = Scaffold
    says: str = ""


POINTS = {
    **{hook: Point(hook=hook, says=f"in {hook} of Counter") for hook in (*SERVER_HOOKS, "on_round_metrics")},
    **{hook: Point(hook=hook) for hook in ("on_train_epoch_start", "on_train_batch_start", "on_before_optimizer_step")},
    **{hook: Point(hook=hook, finished=BAD) for hook in LIGHTNING_HOOKS[3:]},
    "evaluated_model": Point(hook="evaluated_model"),
    "evaluated_model, ever after": Point(ever_after(0), hook="evaluated_model"),
    "evaluated_model at the commit, ever after": Point(ever_after(1), hook="evaluated_model"),
    "ClientStates.commit": Point(rows_of_clients),
    "a metric that nobody declared": Point(hook="undeclared metric", says="mine/other"),
    "the sampler": Point(draw),
    "Client.select": Point(client_method("select")),
    "Client.local_work": Point(client_method("local_work")),
    "the data": Point(data_rows),
    "first step of a client": Point(step("training_step", 0), says="client"),
    "last step of the last client": Point(step("training_step", 8), says="client"),
    "a step, vectorized": Point(step("training_step", 2), engine="vectorized"),
    "the first phase's step": Point(step("personal_step", 4), make=Ditto),
    "the second phase's step": Point(step("training_step", 4), make=Ditto),
    "the first phase's step, vectorized": Point(step("personal_step", 1), engine="vectorized", make=Ditto),
    "the second phase's step, vectorized": Point(step("training_step", 1), engine="vectorized", make=Ditto),
    "the phase after training": Point(step("pull_step", 1), make=FedBCDI),
    "a client that is not finite": Point(no_number, says="diverged"),
    "the weighting": Point(weigh, says="FaultyWeighting"),
    "weights that are no shares": Point(lambda parts: weigh(parts, [5.0, -3.0, -1.0]), says="below 0"),
    "weights that are not numbers": Point(lambda parts: weigh(parts, [np.nan, 1.0, 0.0]), says="not all are finite"),
    "too few weights": Point(lambda parts: weigh(parts, [0.5, 0.5]), says="2 weights for 3 clients"),
    "weights that sum to 2": Point(lambda parts: weigh(parts, [1.0, 1.0, 0.0]), says="sum to 2"),
    "the server's optimiser": Point(step_of_the_server, says="HalfDone"),
    "evaluation": Point(evaluation),
    "append_clients": Point(full_disk("append_clients")),
    "append_metrics": Point(full_disk("append_metrics")),
    "half a row of metrics.csv": Point(full_disk_in_a_line, says="disk is full"),
    "flush_clients": Point(full_disk("flush_clients"), finished=BAD),
    "rotate_checkpoint": Point(full_disk("rotate_checkpoint"), finished=BAD),
    "a logger": Point(log, finished=BAD),
    "Ctrl-C at once": Point(interrupted),
    "StopIteration": Point(stop_iteration, says="StopIteration"),
}


def arranged(point: Point, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Parts:
    parts = sound(folder, point.engine, point.make, point.hook)
    wants = point.arrange.__code__.co_argcount
    point.arrange(parts, *([monkeypatch] if wants == 2 and point.arrange is not weigh else []))
    return parts


@pytest.mark.parametrize("name", POINTS)
def test_whatever_raises_the_last_finished_round_stands(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = POINTS[name]
    truth = undisturbed(tmp_path, point.engine, point.make)
    folder, on_exception = tmp_path / "run", tmp_path / "on_exception"
    parts = arranged(point, folder, monkeypatch)
    parts.options["callbacks"].append(ModelCheckpoint(on_exception, save_on_exception=True, save_top_k=0))
    trainer = FederatedTrainer(**parts.options)

    with pytest.raises(BaseException) as failure:  # noqa: PT011  # each point raises its own
        trainer.fit(parts.client, datamodule=parts.data)
    assert not isinstance(failure.value, AssertionError), failure.value

    said = " ".join([str(failure.value), *getattr(failure.value, "__notes__", [])])
    assert point.says in said
    assert isinstance(failure.value, FedlitError | Fault | OSError | KeyboardInterrupt | SystemExit | RuntimeError)
    assert parts.fuse.blown or point.hook == "undeclared metric"

    assert trainer.loop.rounds_done == point.finished
    assert same(state_of(trainer), truth[point.finished]), "memory is that of the last finished round"
    measured = truth[point.finished]["federation"]["servers"][0]["model"]
    assert same({key: value.detach() for key, value in parts.client.net.named_parameters()}, measured)

    trainer.save_checkpoint(tmp_path / "asked.ckpt")
    for path in (tmp_path / "asked.ckpt", *on_exception.glob("*.ckpt")):
        content = torch.load(path, weights_only=True)
        saved = content["loops"]["fit_loop"]
        assert saved["rounds"] == point.finished
        assert same(saved["federation"], truth[point.finished]["federation"])
        assert same(saved["clients"], truth[point.finished]["clients"])
        assert same({key.removeprefix("net."): value for key, value in content["state_dict"].items()}, measured)

    with open(folder / "metrics.csv") as file:
        assert [int(row["round"]) for row in csv.DictReader(file)] == list(range(point.finished + 1))

    monkeypatch.undo()
    again = sound(folder, point.engine, point.make)
    if isinstance(parts.options["server_optimizer"], HalfDoneOptimizer):
        again.options["server_optimizer"] = parts.options["server_optimizer"]
    for key in ("weights", "sampler"):
        if key in parts.options:
            again.options[key] = parts.options[key]
    resumed = FederatedTrainer(**again.options, resume=True)
    resumed.fit(again.client, datamodule=again.data)
    assert same(state_of(resumed), truth[ROUNDS]), "a resumed run ends with the bits of an undisturbed one"


class Stubborn(Counter):
    """Cannot be restored."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise Fault("not restored")


def test_the_rest_is_undone_even_if_a_callback_cannot_be(tmp_path: Path) -> None:
    truth = undisturbed(tmp_path, "sequential", Scaffold)[BAD - 1]
    parts = sound(tmp_path / "run")
    parts.options["callbacks"][0] = stubborn = Stubborn()
    stubborn.fuse, stubborn.hook = parts.fuse, "on_round_metrics"
    trainer = FederatedTrainer(**parts.options)
    with pytest.raises(Fault, match="on purpose") as failure:
        trainer.fit(parts.client, datamodule=parts.data)
    assert "While round 3 was undone, this was raised too: Fault: not restored" in failure.value.__notes__
    assert same(state_of(trainer) | {"counters": truth["counters"]}, truth)
    measured = truth["federation"]["servers"][0]["model"]
    assert same({key: value.detach() for key, value in parts.client.net.named_parameters()}, measured)


def test_a_failed_round_shows_what_a_callback_had_measured_in_the_last_one(tmp_path: Path) -> None:
    """FedDyn measures the mean of the clients' models, not z."""
    seen = []

    class Watch(Counter):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            seen.append(clone(pl_module.net.state_dict()))

    parts = sound(tmp_path / "run", make=FedDyn)
    parts.options["callbacks"][0] = watch = Watch()
    watch.fuse, watch.hook = parts.fuse, "on_server_step_end"
    with pytest.raises(Fault):
        FederatedTrainer(**parts.options).fit(parts.client, datamodule=parts.data)
    assert len(seen) == BAD - 1
    assert same(clone(parts.client.net.state_dict()), seen[-1])
