"""Laws of a stack: several servers' cohorts are what each would be alone, whether or not anybody reads a part."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedlit.client.cohort import Cohort, TrainedCohort, WeighedCohort
from fedlit.client.cohort_stack import CohortStack, stack_of, stacked_fields

COUNTS = [2, 1, 3]
MODELS = {"w": torch.arange(6.0).view(3, 2), "b": torch.arange(3.0)}
REPEATED = [0, 0, 1, 2, 2, 2]
"""Whose model each client received."""


def gathered(counts: list[int] = COUNTS) -> list[Cohort]:
    count = sum(counts)
    fields = {
        "reports": torch.ones(count, dtype=torch.bool),
        "sizes": torch.arange(count) + 1,
        "steps": torch.arange(count) + 10,
        "state": {"dual": torch.arange(float(count))},
        "sent": {},
    }
    models = {"received": {name: value[: len(counts)] for name, value in MODELS.items()}, "received_buffers": {}}
    stack = CohortStack(counts, fields, models)
    given: dict[str, Any] = {"stack": stack, "round": 4, "run_round": 5, "population": 10}
    return [
        Cohort(server_index=k, clients=list(range(10 * k, 10 * k + n)), draw_rounds=[4] * n, lrs=[0.1] * n, **given)
        for k, n in enumerate(counts)
    ]


def train(cohorts: list[Cohort]) -> tuple[list[TrainedCohort], TrainedCohort]:
    joined = TrainedCohort.begin(Cohort.join(cohorts))
    count = len(joined.clients)
    joined.params, joined.losses = {"w": torch.randn(count, 2)}, torch.randn(count)
    joined.steps_taken = torch.ones(count, dtype=torch.int64)
    return joined.split(cohorts), joined


def together(cohorts: Any, name: str) -> Any:
    return stacked_fields(WeighedCohort)[name].of(cohorts)


def test_each_server_has_its_part_as_views() -> None:
    cohorts = gathered()
    assert [cohort.sizes.tolist() for cohort in cohorts] == [[1, 2], [3], [4, 5, 6]]
    assert [cohort.state["dual"].tolist() for cohort in cohorts] == [[0, 1], [2], [3, 4, 5]]
    assert cohorts[2].received["w"].tolist() == [[4, 5]] * 3
    assert cohorts[2].received["w"].untyped_storage().data_ptr() == MODELS["w"].untyped_storage().data_ptr()


def test_what_nobody_has_read_stays_in_one_piece() -> None:
    cohorts = gathered()
    stack = stack_of(cohorts)
    assert stack is not None
    assert together(cohorts, "sizes") is stack.fields["sizes"]
    assert torch.equal(together(cohorts, "received")["b"], MODELS["b"][REPEATED])


@pytest.mark.parametrize("read", ["sizes", "state", "received"])
def test_reading_a_part_changes_nothing_of_the_whole(read: str) -> None:
    untouched, touched = gathered(), gathered()
    getattr(touched[1], read)
    before, after = together(untouched, read), together(touched, read)
    pairs = [(before, after)] if isinstance(before, torch.Tensor) else [(before[key], after[key]) for key in before]
    assert all(torch.equal(*pair) for pair in pairs)


def test_what_one_server_replaces_or_changes_in_place_is_in_the_whole() -> None:
    cohorts = gathered()
    cohorts[1].steps = torch.tensor([99])
    cohorts[2].state["dual"] = torch.full((3,), -1.0)
    cohorts[0].sizes[0] = 50
    assert together(cohorts, "steps").tolist() == [10, 11, 99, 13, 14, 15]
    assert together(cohorts, "state")["dual"].tolist() == [0, 1, 2, -1, -1, -1]
    assert together(cohorts, "sizes").tolist() == [50, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("order", [[1, 0, 2], [0, 2], [2]])
def test_other_servers_or_another_order_are_put_together_anew(order: list[int]) -> None:
    cohorts = gathered()
    chosen = [cohorts[k] for k in order]
    assert stack_of(chosen) is None
    assert together(chosen, "sizes").tolist() == [size for cohort in chosen for size in cohort.sizes.tolist()]


def test_cohorts_of_two_stacks_are_put_together_anew() -> None:
    mixed = [gathered()[0], *gathered()[1:]]
    assert stack_of(mixed) is None
    assert together(mixed, "sizes").tolist() == [1, 2, 3, 4, 5, 6]


def test_what_was_trained_together_is_shared_and_found_again() -> None:
    cohorts, joined = train(gathered())
    assert torch.equal(cohorts[2].params["w"], joined.params["w"][3:])
    assert together(cohorts, "losses") is joined.losses
    assert TrainedCohort.join(cohorts, ["steps_taken"]).steps_taken.tolist() == [1] * 6


def test_received_models_stay_views_of_the_servers_models_after_training() -> None:
    cohorts, _ = train(gathered())
    assert cohorts[2].received["w"].untyped_storage().data_ptr() == MODELS["w"].untyped_storage().data_ptr()
    assert torch.equal(together(cohorts, "received")["b"], MODELS["b"][REPEATED])


def test_model_that_one_server_has_replaced_before_training_is_still_there_after_it() -> None:
    cohorts = gathered()
    cohorts[1].received = {"w": torch.full((1, 2), 9.0), "b": torch.full((1,), 9.0)}
    trained, _ = train(cohorts)
    assert trained[1].received["b"].tolist() == [9.0]
    assert trained[2].received["b"].tolist() == [2.0] * 3


@pytest.mark.parametrize("due", [[0, 2], [2, 1]])
def test_some_servers_of_a_stack_can_train_alone(due: list[int]) -> None:
    stepping = [gathered()[k] for k in due]
    trained, joined = train(stepping)
    first = len(stepping[0].clients)
    assert torch.equal(trained[1].params["w"], joined.params["w"][first:])
    assert trained[1].sizes.tolist() == gathered()[due[1]].sizes.tolist()
    assert trained[0].received["b"].tolist() == [float(due[0])] * first


def test_field_that_is_filled_later_is_read_too_early_in_a_stack_as_well() -> None:
    with pytest.raises(AttributeError, match="weights is read too early"):
        gathered()[0].weights  # type: ignore[attr-defined]  # noqa: B018  # reading it is the point


def test_stack_of_one_server_is_not_cut() -> None:
    [cohort] = gathered([2])
    assert cohort.sizes is cohort.stack.fields["sizes"]
    assert cohort.state is cohort.stack.fields["state"]
    assert Cohort.join([cohort]) is cohort


def test_clients_that_are_taken_out_share_what_all_received_and_own_the_rest() -> None:
    cohort = gathered()[2]
    alone = cohort.take([1])
    alone.state["dual"] += 1
    assert (alone.clients, alone.sizes.tolist(), alone.state["dual"].tolist()) == ([21], [5], [5.0])
    assert cohort.state["dual"].tolist() == [3, 4, 5]
    assert alone.received["w"].data_ptr() == cohort.received["w"].data_ptr()


def test_buffered_reports_keep_the_rounds_in_which_they_were_sent_their_models() -> None:
    reports = [replace(cohort, round=own) for cohort, own in zip(train(gathered())[0], (2, 4, 3), strict=True)]
    for report in reports:
        report.draw_rounds = [report.round] * len(report.clients)
    cohort = TrainedCohort.from_reports(reports, 4, 50)
    assert (cohort.round, cohort.population, cohort.staleness.tolist()) == (4, 50, [2, 2, 0, 1, 1, 1])


def test_every_server_counts_alike_in_the_whole_round() -> None:
    weighed = [
        WeighedCohort.weigh(cohort, torch.full((len(cohort.clients),), 1 / len(cohort.clients)), 1.0)
        for cohort in train(gathered())[0]
    ]
    torch.testing.assert_close(
        WeighedCohort.whole_round(weighed).weights, torch.tensor([1 / 6, 1 / 6, 1 / 3, 1 / 9, 1 / 9, 1 / 9])
    )
