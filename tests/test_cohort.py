"""Laws of the cohort: what can be read when, and who is its smallest and largest client."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlit import Cohort
from tests.server import make_cohort

LATER = {
    "params": "on_cohort_trained",
    "buffers": "on_cohort_trained",
    "losses": "on_cohort_trained",
    "weights": "on_pseudo_gradient",
    "pseudo_gradient": "on_pseudo_gradient",
}
MEMBERS = st.lists(
    st.tuples(st.integers(0, 99), st.integers(1, 3), st.booleans()), min_size=1, unique_by=lambda member: member[0]
).filter(lambda members: any(reports for _, _, reports in members))
PATIENT = settings(deadline=None, max_examples=50)  # a busy machine is no failure


@pytest.mark.parametrize(("name", "hook"), LATER.items(), ids=list(LATER))
def test_field_read_too_early_says_so_and_names_the_hook(name: str, hook: str) -> None:
    with pytest.raises(AttributeError, match=rf"cohort\.{name} is read too early.*{hook}"):
        getattr(make_cohort(), name)


@pytest.mark.parametrize("name", LATER)
def test_field_can_be_read_once_it_is_filled(name: str) -> None:
    cohort, value = make_cohort(), torch.ones(3)
    setattr(cohort, name, value)
    assert getattr(cohort, name) is value


def test_field_that_does_not_exist_is_named() -> None:
    with pytest.raises(AttributeError, match="no field 'wieghts'"):
        make_cohort().wieghts  # noqa: B018  # reading it is the point


def test_cohort_can_be_printed_in_every_phase() -> None:
    assert "round=0" in repr(make_cohort())


def test_rate_sum_of_a_client_is_its_steps_times_the_rate() -> None:
    cohort = make_cohort(sizes=(3, 5))
    cohort.steps, cohort.lr = torch.tensor([4, 0]), 0.25
    assert cohort.rate_sums.tolist() == [1.0, 0.0]


def test_whole_model_state_is_read_as_a_parameter_dict() -> None:
    cohort = make_cohort(state={"dual": torch.zeros(3), "local.w": torch.ones(3, 2), "local.b": torch.zeros(3, 1)})
    assert list(cohort.model("local")) == ["w", "b"]


@PATIENT
@pytest.mark.parametrize(("largest", "extreme"), [(False, min), (True, max)], ids=["smallest", "largest"])
@given(members=MEMBERS)
def test_extreme_client_reports_and_ties_go_to_the_lowest_id(
    members: list[tuple[int, int, bool]], largest: bool, extreme: Callable[[list[int]], int]
) -> None:
    ids, sizes, reports = (list(column) for column in zip(*members, strict=True))
    cohort: Cohort = make_cohort(sizes=tuple(sizes), clients=ids, reports=reports)
    reporting = [(size, client) for client, size, reports in members if reports]
    size = extreme([size for size, _ in reporting])
    assert cohort.clients[cohort.extreme(largest=largest)] == min(client for n, client in reporting if n == size)
