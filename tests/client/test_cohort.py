"""Laws of the cohort: what can be read when, and who is its smallest and largest client."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlit import Cohort, TrainedCohort
from fedlit.client.states import ClientStates
from tests.server import gathered, make_cohort, trained

LATER = {
    "params": "on_cohort_trained",
    "buffers": "on_cohort_trained",
    "losses": "on_cohort_trained",
    "steps_taken": "on_cohort_trained",
    "moves": "on_cohort_trained",
    "distances": "on_cohort_trained",
    "sent_params": "on_cohort_trained",
    "weights": "on_pseudo_gradient",
    "pseudo_gradient": "on_pseudo_gradient",
}
MEMBERS = st.lists(
    st.tuples(st.integers(0, 99), st.integers(1, 3), st.booleans()), min_size=1, unique_by=lambda member: member[0]
).filter(lambda members: any(reports for _, _, reports in members))
PATIENT = settings(deadline=None, max_examples=50)  # a busy machine is not a failure


@pytest.mark.parametrize(("name", "hook"), LATER.items(), ids=list(LATER))
def test_field_read_too_early_says_so_and_names_the_hook(name: str, hook: str) -> None:
    with pytest.raises(AttributeError, match=rf"cohort\.{name} is read too early.*{hook}"):
        getattr(gathered(), name)


@pytest.mark.parametrize("name", ["weights", "pseudo_gradient"])
def test_field_of_the_last_stage_is_read_too_early_in_training_too(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"cohort\.{name} is read too early.*on_pseudo_gradient"):
        getattr(trained(), name)


@pytest.mark.parametrize(
    ("name", "hook"), [("risk_received", "on_cohort_start"), ("risk_trained", "on_cohort_trained")]
)
def test_risk_that_nobody_needs_is_refused_and_the_error_names_needs(name: str, hook: str) -> None:
    with pytest.raises(AttributeError, match=rf"cohort\.{name} is read too early.*`needs` it.*{hook}"):
        getattr(make_cohort(), name)


@pytest.mark.parametrize("name", ["params", "buffers", "losses", "steps_taken", "weights", "pseudo_gradient"])
def test_field_can_be_read_once_it_is_filled(name: str) -> None:
    cohort, value = make_cohort(), torch.ones(3)
    setattr(cohort, name, value)
    assert getattr(cohort, name) is value


def test_models_begin_as_they_were_received() -> None:
    cohort = gathered()
    begun = TrainedCohort.begin(cohort)
    assert begun.params is cohort.received
    assert begun.start_of("trained") == (cohort.received, {})


def test_field_that_does_not_exist_is_named() -> None:
    with pytest.raises(AttributeError, match="no attribute 'wieghts'"):
        make_cohort().wieghts  # noqa: B018  # reading it is the point


def test_cohort_can_be_printed_in_every_phase() -> None:
    assert "round=0" in repr(make_cohort())


def test_rate_sum_of_a_client_is_its_steps_times_the_rate() -> None:
    cohort = gathered(sizes=(3, 5), steps=[4, 0], lr=0.25)
    assert cohort.lr_sums.tolist() == cohort.rate_sums.tolist() == [1.0, 0.0]


def test_rate_of_clients_with_different_ones_is_their_mean_and_each_sums_its_own() -> None:
    cohort = gathered(sizes=(3, 5), steps=[4, 2])
    cohort.lrs = [0.25, 0.75]
    assert cohort.lr == 0.5
    assert cohort.lr_sums.tolist() == [1.0, 1.5]


def test_whole_model_state_is_read_as_a_parameter_dict() -> None:
    cohort = make_cohort(state={"dual": torch.zeros(3), "local.w": torch.ones(3, 2), "local.b": torch.zeros(3, 1)})
    assert list(cohort.model("local")) == ["w", "b"]


@PATIENT
@pytest.mark.parametrize(("name", "extreme"), [("smallest", min), ("largest", max)], ids=["smallest", "largest"])
@given(members=MEMBERS)
def test_extreme_client_reports_and_ties_go_to_the_lowest_id(
    members: list[tuple[int, int, bool]], name: str, extreme: Callable[[list[int]], int]
) -> None:
    ids, sizes, reports = (list(column) for column in zip(*members, strict=True))
    cohort: Cohort = gathered(sizes=tuple(sizes), clients=ids, reports=reports)
    reporting = [(size, client) for client, size, reports in members if reports]
    size = extreme([size for size, _ in reporting])
    assert cohort.clients[getattr(cohort, f"{name}_client")()] == min(client for n, client in reporting if n == size)


def two_phases(first: list[int], second: list[int]) -> TrainedCohort:
    """A cohort of three after two local solves with these steps."""
    state = {"dual": torch.tensor([1.0, 2.0, 3.0]), "local.w": torch.ones(3, 2)}
    cohort = trained(clients=[4, 7, 9], state=state, optimizer_state={"w": torch.zeros(3, 2)})
    for steps in (first, second):
        cohort.steps_taken = cohort.steps_taken + torch.tensor(steps)
    return cohort


def test_nobody_has_trained_before_the_first_phase() -> None:
    assert gathered().trained.tolist() == trained().trained.tolist() == [False] * 3


def test_client_with_steps_in_any_phase_has_trained() -> None:
    assert two_phases([2, 0, 0], [0, 1, 0]).trained.tolist() == [True, True, False]


def test_steps_of_all_phases_are_counted() -> None:
    assert two_phases([2, 0, 0], [3, 1, 0]).steps_taken.tolist() == [5, 1, 0]


def test_client_without_a_step_keeps_its_rows_whatever_a_callback_does() -> None:
    cohort = two_phases([2, 0, 0], [0, 1, 0])
    with cohort.untrained_rows_restored():
        cohort.state["dual"] = cohort.state["dual"] - 0.2  # replaced, as dual ascent does
        cohort.state["local.w"] += 1  # changed in place
        cohort.optimizer_state["w"] += 1
        cohort.state["new"] = torch.ones(3)
    torch.testing.assert_close(cohort.state["dual"], torch.tensor([0.8, 1.8, 3.0]))
    assert cohort.state["local.w"][:, 0].tolist() == [2, 2, 1]
    assert cohort.optimizer_state["w"][:, 0].tolist() == [1, 1, 0]
    assert cohort.state["new"].tolist() == [1, 1, 1]


def test_where_all_trained_nothing_is_copied() -> None:
    cohort = two_phases([1, 1, 0], [0, 0, 1])
    moved = torch.zeros(3)
    with cohort.untrained_rows_restored():
        cohort.state["dual"] = moved
    assert cohort.state["dual"] is moved
    rows = {"dual": moved}
    assert cohort.trained_rows(rows) == ([4, 7, 9], rows)


def test_rows_are_kept_of_those_who_trained() -> None:
    clients, rows = two_phases([2, 0, 0], [0, 0, 1]).trained_rows({"dual": torch.tensor([1.0, 2.0, 3.0])})
    assert clients == [4, 9]
    assert rows["dual"].tolist() == [1, 3]


def test_round_in_which_nobody_trained_keeps_nothing() -> None:
    states = ClientStates()
    states.update([7], {"dual": torch.tensor([5.0])})
    states.update(*two_phases([0, 0, 0], [0, 0, 0]).trained_rows({"dual": torch.ones(3)}))
    assert states.touched == [7]
    assert states.row("dual", 7) == 5
