"""Laws of the dual ascent: which side's old or new value each step reads, and where it may end."""

from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedlit import Cohort, FedBC, FederatedTrainer, Softmax
from fedlit.algorithms.fedbc import DualAscent, dual_ascent, tolerance_step
from tests.problems import kept_rows, run, tiny_net
from tests.server import make_cohort

NUMBERS = st.lists(st.floats(0, 100), min_size=3, max_size=3)
RATES = st.floats(0, 10)
PATIENT = settings(deadline=None, max_examples=50)  # a busy machine is not a failure

NOBODY = cast(FederatedTrainer, None)  # the callback reads the cohort alone


def doubles(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def cohort_at(distances: list[float], dual: list[float], tolerance: list[float]) -> Cohort:
    """Clients that moved by these squared distances from a model of ones that they received."""
    received = torch.ones(len(distances), 2, dtype=torch.float64)
    moved = received.clone()
    moved[:, 0] += doubles(distances).sqrt()
    return make_cohort(
        [5] * len(distances),
        received={"w": received},
        state={"dual": doubles(dual), "tolerance": doubles(tolerance)},
        params={"w": moved},
    )


def after(cohort: Cohort, **options: Any) -> dict[str, list[float]]:
    """Dual and tolerance of the cohort after the ascent."""
    DualAscent(**options).on_cohort_trained(NOBODY, FedBC(Softmax(2, 2)), cohort)
    return {name: value.tolist() for name, value in cohort.state.items()}


@PATIENT
@given(NUMBERS, NUMBERS, NUMBERS, RATES, st.floats(0, 20), st.floats(20, 50))
def test_dual_ascent_is_the_projected_gradient_step(
    dual: list[float], distance: list[float], tolerance: list[float], lr: float, low: float, high: float
) -> None:
    moved = dual_ascent(doubles(dual), doubles(distance) - doubles(tolerance), lr, low, high)
    expected = np.clip(np.array(dual) + lr * (np.array(distance) - np.array(tolerance)), low, high)
    np.testing.assert_allclose(moved.numpy(), expected, rtol=1e-14, atol=1e-14)


@PATIENT
@given(NUMBERS, NUMBERS, RATES)
def test_tolerance_step_descends_the_lagrangian(tolerance: list[float], dual: list[float], lr: float) -> None:
    moved = tolerance_step(doubles(tolerance), doubles(dual), lr)
    np.testing.assert_allclose(moved.numpy(), np.array(tolerance) + lr * np.array(dual), rtol=1e-14)


def test_dual_grows_beyond_the_tolerance_and_shrinks_within_it() -> None:
    assert after(cohort_at([4, 4, 4], [1, 1, 1], [3, 4, 5]), lr=0.5)["dual"] == [1.5, 1.0, 0.5]


@PATIENT
@given(NUMBERS, NUMBERS)
def test_dual_never_leaves_its_range(distance: list[float], tolerance: list[float]) -> None:
    dual = after(cohort_at(distance, [1, 1, 1], tolerance), lr=3.0, low=0.5, high=2.0)["dual"]
    assert min(dual) >= 0.5
    assert max(dual) <= 2.0


def test_dual_has_no_upper_end_unless_given() -> None:
    assert after(cohort_at([1e6], [0], [0]), lr=10.0)["dual"] == pytest.approx([1e7])


def test_dual_ascent_reads_the_model_that_the_client_received() -> None:
    """Each client its own: one received zeros and one received ones, and both moved to ones."""
    cohort = cohort_at([0, 0], [0, 0], [0, 0])
    cohort.received = {"w": doubles([0, 0, 1, 1]).view(2, 2)}
    assert after(cohort, lr=1.0)["dual"] == [2.0, 0.0]


def test_dual_ascent_reads_the_old_tolerance() -> None:
    moved = after(cohort_at([4], [1], [3]), lr=0.5, tolerance_lr=100.0)
    assert moved == {"dual": [1.5], "tolerance": [103.0]}


@pytest.mark.parametrize(("uses", "tolerance"), [("old", 3 + 10 * 1.0), ("new", 3 + 10 * 1.5)], ids=["old", "new"])
def test_tolerance_moves_with_the_dual_that_is_asked_for(uses: str, tolerance: float) -> None:
    assert after(cohort_at([4], [1], [3]), lr=0.5, tolerance_lr=10.0, tolerance_uses=uses)["tolerance"] == [tolerance]


def test_tolerance_that_uses_the_new_dual_reads_it_after_the_projection() -> None:
    options = {"lr": 0.5, "high": 1.25, "tolerance_lr": 10.0, "tolerance_uses": "new"}
    assert after(cohort_at([4], [1], [3]), **options)["tolerance"] == [3 + 10 * 1.25]


def test_tolerance_with_rate_zero_stays_fixed() -> None:
    assert after(cohort_at([4], [1], [3]), lr=0.5)["tolerance"] == [3.0]


def test_dual_with_rate_zero_stays_frozen() -> None:
    assert after(cohort_at([4], [0.35], [0]), lr=0.0)["dual"] == [0.35]


def test_dual_ascent_plays_the_role_that_users_can_take_over() -> None:
    assert DualAscent(lr=1.0).role == "dual"


def test_momentum_of_the_dual_ascent_is_each_clients_own() -> None:
    plain, heavy = (
        run(FedBC(tiny_net(), lr=0.1, batch_size=4, local_epochs=1, dual_lr=0.1, dual_momentum=momentum), rounds=1)
        for momentum in (0.0, 0.5)
    )
    first = {client: float(plain.loop.states.row("dual", client)) for client in plain.loop.states.touched}
    assert {client: float(heavy.loop.states.row("dual", client)) for client in first} == first, "no velocity yet"
    velocity = {client: float(heavy.loop.states.row("dual_velocity", client)) for client in first}
    assert velocity == pytest.approx({client: dual / 0.1 for client, dual in first.items()})
    longer = run(FedBC(tiny_net(), lr=0.1, batch_size=4, local_epochs=1, dual_lr=0.1, dual_momentum=0.5), rounds=2)
    twice = [client for client in longer.loop.states.touched if client in first]
    assert any(float(longer.loop.states.row("dual_velocity", client)) != velocity[client] for client in twice)


def test_a_client_without_a_step_keeps_its_dual() -> None:
    class Idle(FedBC):
        """Client 1 never trains."""

        def local_work(self, cohort: Cohort, planned: np.ndarray, generator_of: Any) -> np.ndarray:
            return np.where(np.array(cohort.clients) == 1, 0, planned)

    trainer = run(Idle(tiny_net(), dual_lr=0.5, dual_init=1.0, tolerance_init=0.4), sampler="all")
    assert 1 not in trainer.loop.states.touched
    assert all(float(trainer.loop.states.row("dual", client)) != 1.0 for client in (0, 2, 3))


def test_duals_stay_in_their_range_through_a_run() -> None:
    client = FedBC(tiny_net(), dual_lr=5.0, dual_init=0.05, dual_min=0.05, dual_max=0.2)
    dual = kept_rows(run(client))["dual"]
    assert float(dual.min()) >= 0.05
    assert float(dual.max()) <= 0.2


def test_with_a_tolerance_of_zero_no_dual_ever_falls() -> None:
    trainer = run(FedBC(tiny_net(), dual_lr=0.5, tolerance_lr=0.0), sampler="all")
    lows = trainer.loop.history.series("dual/min")[1]
    assert lows == sorted(lows)
