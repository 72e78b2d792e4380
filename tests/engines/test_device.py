"""Where clients train and in which numbers. There is no GPU here: `tests/pretended_gpu.py` says what torch would."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorDeviceMismatchError

from fedlit.algorithms.fedavg import FedAvg
from fedlit.algorithms.fedbc import FedBC
from fedlit.algorithms.scaffold import Scaffold
from fedlit.client.base import Client
from fedlit.client.step import Batch
from fedlit.data.row_encoding import RowCode, viewed
from fedlit.data.tensor import TensorData
from fedlit.engines.base import plan_batches
from fedlit.engines.choose import Request, choose
from fedlit.engines.device import Device, DeviceSequential, find_accelerator
from fedlit.engines.vectorized import VectorizedEngine
from fedlit.errors import ConfigError
from fedlit.experiments.conformance.checks import new
from fedlit.experiments.conformance.entries import ENTRIES
from fedlit.experiments.conformance.problem import LOCAL, Problem, everything, largest_gap, tiny_data, tiny_net, trained
from fedlit.keys import Purpose, Stream
from fedlit.models import MLP, Softmax
from fedlit.rounds.loop import FederatedLoop
from fedlit.trainer.restore import Restored
from fedlit.trainer.trainer import FederatedTrainer
from tests.cases import slow_but
from tests.pretended_gpu import CUDA, PretendedGpu, machine_with, pretended_gpu

ROUNDS = 2
FEW_STEPS = Problem(local=LOCAL | {"batch_size": 8})
"""Two to six steps a client, the last one ragged: an operation on the pretended GPU takes a millisecond."""
ENGINES = ("sequential", "vectorized")


@dataclass
class Watched:
    """A run on the pretended GPU: how often the host waited for it."""

    trainer: Any
    inside: int
    """While an engine trained."""
    rounds: list[int]
    """In each round, outside of that; the last one is evaluated."""


def on_gpu(gpu: PretendedGpu, monkeypatch: pytest.MonkeyPatch, client: Client, **options: Any) -> Watched:
    """A run there."""
    inside: list[int] = []
    whole: list[int] = []

    def counting(function: Callable[..., Any], into: list[int]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            before = len(gpu.waits)
            result = function(*args)
            into.append(len(gpu.waits) - before)
            return result

        return counted

    for engine in (DeviceSequential, VectorizedEngine):
        monkeypatch.setattr(engine, "train", counting(engine.train, inside))
    monkeypatch.setattr(FederatedLoop, "advance", counting(FederatedLoop.advance, whole))
    given: dict[str, Any] = {"rounds": ROUNDS, "accelerator": "gpu", "eval_every": ROUNDS}
    trainer = trained(client, FEW_STEPS, **(given | options))
    return Watched(trainer, sum(inside), whole)


# ---- every algorithm on a pretended GPU ------------------------------------------------------------------------------


ONE_BY_ONE = ("FedBC", "SCAFFOLD I", "Ditto", "Per-FedAvg, exact", "pFedMe", "FedBCD-I", "FedProx + FedAdam + Exp-α")
"""Steps of every kind; a step is the same code in both engines, and a GPU takes the vectorized one unless told."""
OF_THE_HOST = ("Exp-α", "FedAvgM", "FedAdam", "FedYogi", "FedAdagrad")
"""FedAvg on the device: what they add is the server's, which stays on the host."""
QUICK = [*((name, "sequential") for name in ONE_BY_ONE), *((n, "vectorized") for n in ENTRIES if n not in OF_THE_HOST)]
EVERY = slow_but(QUICK, [(name, engine) for name in ENTRIES for engine in ENGINES])


@pytest.mark.usefixtures("few_inner_steps")
@pytest.mark.parametrize(("name", "engine"), EVERY)
def test_whole_rounds_run_on_a_gpu_as_on_a_processor(name: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixed devices raise; no step waits; numbers and kept rows are a processor's, bit for bit."""
    entry = ENTRIES[name]
    form = {"compiled": False, "lanes": 3} if engine == "vectorized" else {}
    options = {"rounds": ROUNDS, "eval_every": ROUNDS, "engine": engine, **entry.trainer}
    reference = trained(new(entry.make, FEW_STEPS), FEW_STEPS, **form, **options)
    with pretended_gpu(monkeypatch) as gpu:
        options["lanes"] = 3 if engine == "vectorized" else None
        run = on_gpu(gpu, monkeypatch, new(entry.make, FEW_STEPS), **options)
        gap = largest_gap(everything(reference), everything(run.trainer))
    print(
        f"\n{name}, {engine}: {gpu.operations} operations on cuda, none mixed; waits in local training: {run.inside}; "
        f"outside, a round: {run.rounds[0]}, where it is evaluated: {run.rounds[-1]}",
        end="",
    )
    assert run.trainer.loop.choice.engine == engine
    assert gpu.operations > 300
    assert run.inside == 0
    assert gap == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_a_frozen_part_is_on_the_gpu_too(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(lambda: MLP(5, (4,), 3), FEW_STEPS.local)
    options: dict[str, Any] = {"rounds": 2, "engine": engine}
    options |= {"compiled": False, "lanes": 3} if engine == "vectorized" else {}
    reference = trained(new(partial(FedBC, train="layers.2"), problem), problem, **options)
    with pretended_gpu(monkeypatch):
        there = trained(new(partial(FedBC, train="layers.2"), problem), problem, accelerator="gpu", **options)
        gap = largest_gap(everything(reference), everything(there))
    assert gap == 0


def test_a_round_waits_once_for_each_local_solve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without evaluation: SCAFFOLD has one solve, Ditto two."""
    found = {}
    for name in ("SCAFFOLD II", "Ditto"):
        with pretended_gpu(monkeypatch) as gpu:
            run = on_gpu(gpu, monkeypatch, new(ENTRIES[name].make, FEW_STEPS), engine="vectorized")
        monkeypatch.undo()
        found[name] = run.rounds[0]
    assert found == {"SCAFFOLD II": 1, "Ditto": 2}


# ---- the check can fail ----------------------------------------------------------------------------------------------


class ReadsItsLoss(FedAvg):
    """Looks at a value in a step."""

    def training_step(self, batch: Batch, batch_idx: int | Tensor) -> Tensor:
        loss = self.task_loss(batch)
        loss.detach().item()
        return loss


class SendsANumber(FedAvg):
    """Makes a tensor on the host, and waits until it is sent."""

    def training_step(self, batch: Batch, batch_idx: int | Tensor) -> Tensor:
        return self.task_loss(batch) * torch.tensor(0.5, device=batch.x.device)


class MasksRows(FedAvg):
    """A mask whose count the host must know."""

    def training_step(self, batch: Batch, batch_idx: int | Tensor) -> Tensor:
        real = batch.row_weights > 0
        return self.task_loss(Batch(batch.x[real], batch.y[real], batch.row_weights[real]))


class StaysOnTheHost(FedAvg):
    """Weighs rows by a tensor of the host."""

    def training_step(self, batch: Batch, batch_idx: int | Tensor) -> Tensor:
        return self.task_loss(batch._replace(row_weights=batch.row_weights * torch.ones(len(batch.y))))


@pytest.mark.parametrize("kind", [ReadsItsLoss, SendsANumber, MasksRows])
def test_a_step_that_waits_is_counted(kind: type[Client], monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_gpu(monkeypatch) as gpu:
        run = on_gpu(gpu, monkeypatch, kind(tiny_net(), **LOCAL), engine="sequential")
    fewest_steps = int(run.trainer.loop.client.planned_steps(tiny_sizes()).min())
    assert run.inside >= ROUNDS * 3 * fewest_steps


def tiny_sizes() -> np.ndarray:
    data = tiny_data()
    data.setup()
    return data.sizes.numpy()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_that_mixes_devices_raises(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = StaysOnTheHost(tiny_net(), **LOCAL)
    with pretended_gpu(monkeypatch) as gpu, pytest.raises(FakeTensorDeviceMismatchError):
        on_gpu(gpu, monkeypatch, client, engine=engine)


def test_pictures_are_augmented_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    code, rng = RowCode(4, 10), np.random.default_rng(0)
    view = code.view(torch.from_numpy(code.varied(np.arange(4), rng, flip=True)))
    x = torch.rand(4, 3, 8, 8)
    with pretended_gpu(monkeypatch) as gpu:
        there = viewed(x.to(CUDA, non_blocking=True), view.to(CUDA, non_blocking=True))
        waited = len(gpu.waits)
        assert torch.equal(there.cpu(), viewed(x, view))
    assert waited == 0


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "options", "message"),
    [
        (0, {"accelerator": "gpu"}, "trainer.accelerator is gpu, but this machine has no GPU that PyTorch"),
        (
            1,
            {"accelerator": "gpu", "devices": 2},
            "trainer.devices is 2, but this machine has 1 GPU, and every process",
        ),
        (2, {"accelerator": "gpu", "devices": 3}, "this machine has 2 GPUs, and .* Set trainer.devices to 2, or"),
        (0, {"accelerator": "tpu"}, "trainer.accelerator is tpu. .*give auto, cpu or gpu"),
        (0, {"precision": "16-mixed"}, "trainer.precision is 16-mixed, .*loss is scaled.*precision to bf16-mixed"),
        (0, {"precision": "16-true"}, "trainer.precision is 16-true, .*precision to bf16-true"),
        (0, {"precision": "8-true"}, "trainer.precision is 8-true. .*Give 32-true, 64-true, bf16-mixed or bf16-true"),
    ],
)
def test_what_cannot_work_is_refused_in_a_paragraph(
    gpus: int, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_with(monkeypatch, gpus)
    with pytest.raises(ConfigError, match=message) as refused:
        FederatedTrainer(**options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"engine": "vectorized", "compiled": True},
            "trainer.compiled is true, but compiled programs are for processors",
        ),
        ({"engine": "vectorized", "workers": 2}, "trainer.workers is 2, but a GPU is kept busy by lanes"),
    ],
)
def test_forms_that_a_gpu_does_not_have_are_refused(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pretended_gpu(monkeypatch), pytest.raises(ConfigError, match=message):
        trained(FedAvg(tiny_net(), **LOCAL), accelerator="gpu", **options)


def test_sixteen_bits_are_not_compiled() -> None:
    client = FedAvg(net(), **OPTIONS)
    with pytest.raises(ConfigError, match="trainer.compiled is true, but 16-bit numbers run in the eager form"):
        fit(client, precision="bf16-mixed", engine="vectorized", compiled=True)


# ---- auto ------------------------------------------------------------------------------------------------------------


def test_auto_takes_a_gpu_for_each_process_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_with(monkeypatch, 1)
    assert find_accelerator("auto", 1) == "cuda"
    assert find_accelerator("auto", 2) == "cpu"
    machine_with(monkeypatch, 0)
    assert find_accelerator("auto", 1) == "cpu"


def test_auto_leaves_a_softmax_regression_to_the_processor_and_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pretended_gpu(monkeypatch) as gpu, caplog.at_level(logging.INFO, "fedlit"):
        run = on_gpu(gpu, monkeypatch, FedAvg(tiny_net(), **LOCAL), accelerator="auto")
    assert run.rounds == [0, 0]
    assert run.trainer.loop.choice.accelerator == "cpu"
    assert (
        "accelerator: cpu (one step of 3 clients at once is 1.1e+03 flop, and a GPU pays from about 1e+09)"
        in caplog.text
    )


def test_auto_takes_a_gpu_where_a_step_is_heavy(caplog: pytest.LogCaptureFixture) -> None:
    net = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 10))
    request, device = Request(accelerator="auto", has_gpu=True), Device(CUDA)
    with caplog.at_level(logging.INFO, "fedlit"):
        choice = choose(request, FedAvg(net, batch_size=32), np.full(20, 10), 10, 5, torch.ones(512), device=device)
    assert (choice.accelerator, choice.engine, choice.lanes, choice.compiled) == ("gpu", "vectorized", 10, False)
    assert "accelerator: gpu (one step of 10 clients at once is 2.1e+09 flop" in caplog.text


def test_without_a_gpu_auto_is_the_processor(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fedlit"):
        trainer = trained(FedAvg(tiny_net(), **LOCAL), rounds=1, accelerator="auto")
    assert trainer.loop.choice is not None
    assert trainer.loop.choice.accelerator == "cpu"
    assert "accelerator: cpu (there is not a GPU for every process of this run)" in caplog.text


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(8), nn.RReLU()])
def test_nets_that_cannot_be_mapped_train_one_client_after_the_other(layer: nn.Module) -> None:
    net = nn.Sequential(nn.Linear(4, 8), layer, nn.Linear(8, 2))
    asked = {"planned": np.full(6, 10), "per_round": 4, "rounds": 2, "sample": torch.ones(4), "device": Device(CUDA)}
    choice = choose(Request(accelerator="gpu"), FedAvg(net), **asked)
    assert (choice.engine, choice.accelerator) == ("sequential", "gpu")
    if not isinstance(layer, nn.RReLU):
        with pytest.raises(ConfigError, match="on a GPU this net trains one client after the other"):
            choose(Request(engine="vectorized", accelerator="gpu"), FedAvg(net), **asked)


# ---- elsewhere -------------------------------------------------------------------------------------------------------


def test_a_run_can_move_from_a_gpu_to_a_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """FedAdam's moments are restored where z is; the same numbers as a run that never was elsewhere."""
    entry = ENTRIES["FedAdam"]
    whole = trained(new(entry.make), rounds=4, **entry.trainer)
    with pretended_gpu(monkeypatch) as gpu:
        half = on_gpu(gpu, monkeypatch, new(entry.make), engine="sequential", **entry.trainer)
        half.trainer.save_checkpoint(tmp_path / "half.ckpt")
    monkeypatch.undo()
    with caplog.at_level(logging.INFO, "fedlit"):
        again = FederatedTrainer(
            rounds=4, clients_per_round=3, precision="64-true", initial_weights="net", **entry.trainer
        )
        again.fit(new(entry.make), datamodule=tiny_data(), ckpt_path=tmp_path / "half.ckpt")
    assert "had 1 processes on gpu so far and goes on with 1 on cpu" in caplog.text
    assert largest_gap(everything(whole), everything(again)) == 0


def test_a_run_is_resumed_on_the_gpu_it_was_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ENTRIES["FedAdam"]
    whole = trained(new(entry.make), rounds=4, **entry.trainer)
    common: dict[str, Any] = {"accelerator": "gpu", "clients_per_round": 3, "engine": "sequential", **entry.trainer}
    with pretended_gpu(monkeypatch) as gpu:
        half = on_gpu(gpu, monkeypatch, new(entry.make), **common)
        half.trainer.save_checkpoint(tmp_path / "half.ckpt")
        again = FederatedTrainer(rounds=4, precision="64-true", initial_weights="net", **common)
        again.fit(new(entry.make), datamodule=tiny_data(), ckpt_path=tmp_path / "half.ckpt")
        assert again.loop.choice is not None
        assert again.loop.choice.accelerator == "gpu"
        assert largest_gap(everything(whole), everything(again)) == 0


# ---- 16-bit numbers, for real on the processor -----------------------------------------------------------------------


def fit(client: Client, **options: Any) -> FederatedTrainer:
    given: dict[str, Any] = {"rounds": 3, "clients_per_round": 3, "initial_weights": "net"}
    trainer = FederatedTrainer(**(given | {"enable_progress_bar": False} | options))
    trainer.fit(client, datamodule=problem())
    return trainer


def problem() -> TensorData:
    """Large enough that 8 bits of a product show."""
    rng = np.random.default_rng(1)
    client = np.repeat(np.arange(4), (40, 50, 60, 70))
    centres = rng.normal(size=(3, 24))
    y = rng.integers(3, size=len(client))
    return TensorData((centres[y] + rng.normal(size=(len(y), 24))).astype(np.float32), y, client, num_classes=3)


def net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 3))


MAKERS: dict[str, Any] = {"FedAvg": FedAvg, "FedBC": FedBC, "SCAFFOLD": Scaffold}
OPTIONS: dict[str, Any] = {"lr": 0.1, "batch_size": 8, "local_epochs": 2}


def z(trainer: FederatedTrainer) -> Tensor:
    return torch.cat([value.double().flatten() for value in trainer.loop.server.model.values()])


@pytest.mark.parametrize("engine", slow_but(["vectorized"], ENGINES))  # test_engines_agree_in_sixteen_bits
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("maker", MAKERS)
def test_sixteen_bits_train_near_single_precision_and_not_in_it(maker: str, precision: str, engine: str) -> None:
    form = {"compiled": False, "lanes": 2} if engine == "vectorized" else {}
    single = fit(MAKERS[maker](net(), **OPTIONS), engine=engine, **form)
    half = fit(MAKERS[maker](net(), **OPTIONS), engine=engine, precision=precision, **form)
    assert half.loop.choice is not None
    assert half.loop.choice.engine == engine
    start = torch.cat([value.double().flatten() for value in net().state_dict().values()])
    moved, gap = (z(single) - start).norm(), (z(half) - z(single)).norm()
    assert 1e-4 * moved < gap < (0.05 if precision == "bf16-mixed" else 0.25) * moved
    losses = [trainer.loop.history.rows[-1]["train/loss"] for trainer in (half, single)]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
    assert all(value.dtype == torch.float32 for value in half.loop.server.model.values())
    assert all(torch.isfinite(torch.tensor(list(row.values()))).all() for row in half.loop.history.rows[1:])


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_engines_agree_in_sixteen_bits(precision: str) -> None:
    slow = fit(FedAvg(net(), **OPTIONS), engine="sequential", precision=precision)
    fast = fit(FedAvg(net(), **OPTIONS), engine="vectorized", compiled=False, lanes=2, precision=precision)
    start = torch.cat([value.double().flatten() for value in net().state_dict().values()])
    assert (z(slow) - z(fast)).norm() < 0.1 * (z(slow) - start).norm()


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_a_round_in_sixteen_bits_is_what_torch_does(precision: str) -> None:
    """One client, against a plain loop: a cast weight that outlives its step would show."""
    trainer = fit(FedAvg(net(), **OPTIONS), engine="sequential", precision=precision, rounds=1, clients_per_round=1)
    [who] = trainer.loop.states.touched
    data, model = trainer.loop.data, net()
    rows = data.everyone.train[who].numpy()
    batches = -(-len(rows) // 8)
    plan = plan_batches(Stream().at(0, Purpose.BATCHES, round=0, client=who, index=0), rows, 2 * batches, 8, batches)
    mixed = precision == "bf16-mixed"
    model = model if mixed else model.bfloat16()
    for index, count in zip(plan.index, plan.counts, strict=True):
        x, y = data.rows(data.store, torch.from_numpy(index[:count].copy()))
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            losses = nn.functional.cross_entropy(model(x if mixed else x.bfloat16()), y, reduction="none")
            loss = (losses * torch.full((int(count),), 1 / count, dtype=losses.dtype)).sum()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for value, slope in zip(model.parameters(), grads, strict=True):
                value -= 0.1 * slope
    found = trainer.loop.round_evaluator.models.local(who)
    assert all(torch.equal(found[name], value.float()) for name, value in model.state_dict().items())


def test_a_sum_of_losses_in_sixteen_bits_keeps_its_digits() -> None:
    """Three hundred losses near 1: in bf16 their sum would stop at 256."""
    client = FedAvg(Softmax(24, 3), lr=1e-6, batch_size=8, local_steps=600)
    trainer = fit(client, engine="vectorized", compiled=False, precision="bf16-true", rounds=1)
    row = trainer.loop.history.rows[-1]
    assert row["train/loss"] == pytest.approx(trainer.loop.history.rows[0]["global/loss"], rel=0.2)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_a_frozen_part_is_measured_in_the_numbers_of_its_run(precision: str, tmp_path: Path) -> None:
    client = FedAvg(MLP(24, (6,), 3), train="layers.2", **OPTIONS)
    trainer = fit(client, precision=precision, engine="vectorized", compiled=False, run=tmp_path / "run")
    restored, again = Restored.of(tmp_path / "run"), FedAvg(MLP(24, (6,), 3), **OPTIONS)
    data = trainer.loop.data
    restored.load_into(again, data)
    found, _ = restored.evaluator(again, data).global_model(restored.model)
    assert found["global/loss"] == pytest.approx(trainer.loop.history.rows[-1]["global/loss"], rel=1e-6)


def test_a_run_in_sixteen_bits_resumes_to_the_same_bits(tmp_path: Path) -> None:
    common: dict[str, Any] = {"engine": "vectorized", "compiled": False, "lanes": 2, "precision": "bf16-true"}
    whole = fit(Scaffold(net(), **OPTIONS), rounds=4, **common)
    fit(Scaffold(net(), **OPTIONS), rounds=2, run=tmp_path / "run", **common)
    again = fit(Scaffold(net(), **OPTIONS), rounds=4, run=tmp_path / "run", resume=True, **common)
    assert largest_gap(everything(whole), everything(again)) == 0
