"""Clients planned and swapped in C++: NumPy's draws, and the numbers of the Python that it replaces, to the bit."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlit import Client, FedAvg, FedBC, PerFedAvg, PFedMe
from fedlit.engines import choose, native
from fedlit.engines.base import Engine, plan_batches, row_weights
from fedlit.engines.ladder import Ladder
from fedlit.engines.native import NativeEngine, missing_lanes
from fedlit.keys import Purpose, generator
from fedlit.trainer.trainer import FederatedTrainer
from tests.cases import slow_but
from tests.problems import kept_rows, run, tiny_net, weights_of


@pytest.fixture(scope="module", autouse=True)
def operators_are_built() -> None:
    """Here, and not when tests are collected: every process of a session would build them at the same time."""
    if (reason := missing_lanes()) is not None:
        pytest.skip(reason)


MAKERS: dict[str, Callable[[], Client]] = {
    "nothing is read": lambda: FedAvg(tiny_net(), lr=0.1, batch_size=5, local_epochs=2, momentum=0.9),
    "states are read": lambda: FedBC(tiny_net(), lr=0.1, batch_size=5, local_epochs=2),
    "states are carried": lambda: PFedMe(tiny_net(), lr=0.1, batch_size=5, local_epochs=2, inner_steps=2),
    "several batches a step": lambda: PerFedAvg(tiny_net(), lr=0.1, batch_size=5, local_steps=4),
}


@given(
    rows=st.integers(1, 70),
    batch=st.integers(1, 12),
    steps=st.integers(1, 40),
    per_step=st.integers(1, 3),
    drops_last=st.booleans(),
    key=st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**20), st.integers(0, 2**32 - 1), st.integers(0, 3)),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    cut=st.integers(0, 39),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_plan_is_that_of_numpy(
    rows: int,
    batch: int,
    steps: int,
    per_step: int,
    drops_last: bool,
    key: tuple[int, int, int, int],
    dtype: torch.dtype,
    cut: int,
) -> None:
    """Also where the schedule has room for a part of the steps only, in the second of two native."""
    seed, round, client, stream = key
    own = np.random.default_rng(rows).permutation(1000)[:rows]
    per_epoch = max(1, rows // batch) if drops_last else -(-rows // batch)
    rng = generator(seed, Purpose.BATCHES, round=round, client=client, index=stream)
    plan = plan_batches(rng, own, steps * per_step, batch, per_epoch)
    window, room = min(cut, steps - 1), 16
    until = min(steps, window + room)
    index = torch.full((room, 2, per_step * batch), -1)
    weights, step = torch.full((room, 2, per_step * batch), -1.0, dtype=dtype), torch.full((room, 2), -1)
    job = torch.tensor([[1, 0, 0, steps, 0, rows, per_epoch, round << 32 | client]])
    draws = [seed, stream, Purpose.BATCHES, batch]
    torch.ops.fedlit_lanes.plan(job, torch.from_numpy(own), index, weights, step, draws, window, until)
    here, batches = slice(0, until - window), slice(window * per_step, until * per_step)
    count = until - window
    assert torch.equal(index[here, 1], torch.from_numpy(plan.index[batches].reshape(count, -1)))
    expected = torch.from_numpy(row_weights(plan.counts[batches], batch).reshape(count, -1)).to(dtype)
    assert torch.equal(weights[here, 1], expected)
    assert step[here, 1].tolist() == list(range(window, until))
    assert weights[here, 0].eq(0).all()  # nobody is in the other lane


def engine_of(trainer: FederatedTrainer) -> Engine:
    """What stands on the ladder."""
    ladder = trainer.loop.parts.training.engine
    assert isinstance(ladder, Ladder)
    return ladder.engine


def trained(maker: str, **options: int) -> FederatedTrainer:
    return run(MAKERS[maker](), engine="vectorized", compiled=True, lanes=2, **options)


def in_python(maker: str, monkeypatch: pytest.MonkeyPatch, **options: int) -> FederatedTrainer:
    with monkeypatch.context() as patch:
        patch.setattr(choose, "missing_lanes", lambda: "this is a test")
        fitted = trained(maker, **options)
    assert not isinstance(engine_of(fitted), NativeEngine)
    return fitted


def assert_same(a: FederatedTrainer, b: FederatedTrainer) -> None:
    for one, other in ((weights_of(a), weights_of(b)), (kept_rows(a), kept_rows(b))):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


QUICK = ("nothing is read", "several batches a step")
"""Each is compiled; states that are read and carried are in the test below."""


@pytest.mark.parametrize("maker", slow_but(QUICK, MAKERS))
def test_native_workers_give_the_bits_of_python(maker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = trained(maker, workers=2)
    assert isinstance(engine_of(fast), NativeEngine)
    assert_same(fast, in_python(maker, monkeypatch, workers=2))


@pytest.mark.parametrize("patience", [0.0, 10.0], ids=["each client's end", "one call"])
def test_windows_and_returns_to_python_change_no_bit(patience: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "MAX_CAPACITY", 4)
    monkeypatch.setattr(native, "PATIENCE_S", patience)
    fast = trained("states are carried", workers=2)
    assert fast.summary["capacity"] == 4
    assert_same(fast, in_python("states are carried", monkeypatch, workers=2))
    assert fast.loop.progress.share == 1.0
    assert fast.loop.progress.clients == fast.loop.progress.of_clients


def test_an_error_in_a_thread_reaches_the_caller_and_the_next_round_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with steps and without batches cannot be planned, whichever worker has it."""
    fitted = trained("nothing is read", workers=2)
    engine = engine_of(fitted)
    client = fitted.loop.client
    with monkeypatch.context() as patch:
        patch.setattr(type(client), "batches_per_epoch", lambda self, sizes: np.zeros_like(sizes))
        [cohort] = fitted.loop.parts.gatherer.cohorts(fitted.loop.federation.servers)
        cohort.steps = torch.full_like(cohort.sizes, 3)
        with pytest.raises(RuntimeError, match="without batches"):
            fitted.loop.parts.training.train([cohort])
    [cohort] = fitted.loop.parts.gatherer.cohorts(fitted.loop.federation.servers)
    [again] = fitted.loop.parts.training.train([cohort])
    assert torch.isfinite(again.losses).all()
    assert engine is engine_of(fitted)
