"""Laws of the weightings: how much each reporting client counts."""

import logging
from math import inf, nan

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlit import Cohort, Dual, Samples, TrainedCohort, Uniform
from fedlit.errors import ConfigError
from fedlit.server.weights import Weighed, Weighting, find_weighting, named_weightings
from tests.server import make_cohort

MEMBERS = st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 1e6), st.booleans()), min_size=1, max_size=8).filter(
    lambda members: any(reports for _, _, reports in members)
)
WEIGHTINGS = pytest.mark.parametrize("weighting", [Samples(), Uniform(), Dual()], ids=["samples", "uniform", "dual"])
PATIENT = settings(deadline=None, max_examples=50)  # a busy machine is not a failure

Members = list[tuple[int, float, bool]]


def cohort_of(members: Members) -> Cohort:
    sizes, duals, reports = (list(column) for column in zip(*members, strict=True))
    return make_cohort(sizes, reports=reports, state={"dual": torch.tensor(duals, dtype=torch.float64)})


def cohort_with_duals(*duals: float) -> Cohort:
    return make_cohort([1, 2, 5][: len(duals)], state={"dual": torch.tensor(duals, dtype=torch.float64)})


def weigh(weighting: Weighting, cohort: TrainedCohort) -> np.ndarray:
    return weighting.weigh(cohort).weights.numpy()


@WEIGHTINGS
@PATIENT
@given(members=MEMBERS)
def test_weights_are_not_negative_and_sum_to_one(weighting: Weighting, members: Members) -> None:
    weights = weigh(weighting, cohort_of(members))
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1, abs=1e-12)


@WEIGHTINGS
@PATIENT
@given(members=MEMBERS)
def test_clients_that_do_not_report_weigh_nothing(weighting: Weighting, members: Members) -> None:
    cohort = cohort_of(members)
    assert weigh(weighting, cohort)[~cohort.reports.numpy()].sum() == 0


@WEIGHTINGS
@PATIENT
@given(members=MEMBERS, data=st.data())
def test_weights_do_not_depend_on_client_order(weighting: Weighting, members: Members, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(members))))
    shuffled = weigh(weighting, cohort_of([members[k] for k in order]))
    np.testing.assert_allclose(shuffled, weigh(weighting, cohort_of(members))[order], rtol=1e-12)


@WEIGHTINGS
@PATIENT
@given(members=MEMBERS)
def test_weights_are_those_of_the_reporting_clients_alone(weighting: Weighting, members: Members) -> None:
    cohort = cohort_of(members)
    alone = weigh(weighting, cohort_of([member for member in members if member[2]]))
    np.testing.assert_allclose(weigh(weighting, cohort)[cohort.reports.numpy()], alone, rtol=1e-12)


@WEIGHTINGS
def test_weighing_changes_nothing_in_the_cohort(weighting: Weighting) -> None:
    cohort = cohort_of([(3, 0.5, True), (4, 2.0, False)])
    weighting.weigh(cohort)
    assert (cohort.sizes.tolist(), cohort.state["dual"].tolist()) == ([3, 4], [0.5, 2.0])


@WEIGHTINGS
def test_step_is_of_length_one(weighting: Weighting) -> None:
    assert weighting.weigh(cohort_with_duals(1.0, 2.0)).step == 1.0


@pytest.mark.parametrize("weighting", [Samples(), Uniform()])
def test_cohorts_weighed_together_have_the_bits_of_each_alone(weighting: Weighting) -> None:
    cohorts = [
        make_cohort((3, 7, 11, 13, 17, 19, 23, 29, 31), reports=[True] * 8 + [False]),
        make_cohort((0, 0), reports=[True, True]),
        make_cohort((4,)),
    ]
    for together, cohort in zip(weighting.weigh_each(cohorts), cohorts, strict=True):
        assert torch.equal(together.weights, weighting.weigh(cohort).weights)


def test_a_weighting_of_ones_own_is_asked_for_every_cohort() -> None:
    class FirstOnly(Samples):
        def weigh(self, cohort: TrainedCohort) -> Weighed:
            return Weighed(torch.eye(len(cohort.clients), dtype=torch.float64)[0])

    assert [own.weights.tolist() for own in FirstOnly().weigh_each([make_cohort(), make_cohort((1, 2))])] == [
        [1.0, 0.0, 0.0],
        [1.0, 0.0],
    ]


def test_samples_weigh_by_training_samples() -> None:
    assert weigh(Samples(), make_cohort((1, 3, 4))).tolist() == [0.125, 0.375, 0.5]


def test_uniform_weighs_all_the_same() -> None:
    assert weigh(Uniform(), make_cohort((1, 3, 4, 9))).tolist() == [0.25] * 4


def test_duals_weigh_by_dual_variable_and_not_by_size() -> None:
    assert weigh(Dual(), cohort_with_duals(0.5, 0.25, 0.25)).tolist() == [0.5, 0.25, 0.25]


@pytest.mark.parametrize("weighting", [Samples(), Uniform()], ids=["samples", "uniform"])
def test_weights_stay_finite_where_nobody_has_a_sample(weighting: Weighting) -> None:
    assert weigh(weighting, make_cohort((0, 0))).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("bad", [0.0, inf, nan], ids=str)
@pytest.mark.parametrize(
    ("fallback", "expected"), [("samples", [1 / 3, 2 / 3]), ("uniform", [0.5, 0.5])], ids=["samples", "uniform"]
)
def test_duals_that_cannot_weigh_give_way_to_the_fallback(bad: float, fallback: str, expected: list[float]) -> None:
    weights = weigh(Dual(fallback=fallback), cohort_with_duals(0.0, bad))
    assert weights.tolist() == pytest.approx(expected)


def test_fallback_is_logged_in_one_line_with_the_round(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fedlit"):
        Dual().weigh(cohort_with_duals(0.0, 0.0))
    (line,) = caplog.messages
    assert line.startswith("Round 1:")
    assert "'samples'" in line


def test_duals_that_can_weigh_log_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fedlit"):
        Dual().weigh(cohort_with_duals(0.0, 1e-300))
    assert caplog.messages == []


@pytest.mark.parametrize(("name", "kind"), [("samples", Samples), ("uniform", Uniform), ("dual", Dual)])
def test_weighting_is_found_by_its_name(name: str, kind: type[Weighting]) -> None:
    assert type(find_weighting(name)) is kind


def test_weightings_are_named_in_the_order_in_which_they_are_written() -> None:
    assert list(named_weightings())[:5] == ["samples", "uniform", "q_ffl", "exp_alpha", "dual"]


def test_weighting_that_is_given_is_taken_as_it_is() -> None:
    given = Dual(fallback="uniform")
    assert find_weighting(given) is given


def test_mistyped_weighting_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="'sample', which is not a weighting. Did you mean 'samples'"):
        find_weighting("sample")
