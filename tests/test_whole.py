"""Laws of a whole: several servers' cohorts are what each would be alone, whether or not anybody reads a part."""

from typing import Any

import pytest
import torch

from fedlit.cohort import Cohort, together, whole_of
from fedlit.whole import Whole

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
    each = [
        {"round": 4, "number": 5, "clients": list(range(10 * k, 10 * k + own)), "population": 10, "lr": 0.1}
        for k, own in enumerate(counts)
    ]
    return Cohort.in_whole(Whole(counts, fields, models), each)


def trained() -> tuple[list[Cohort], Cohort]:
    cohorts = gathered()
    joined = Cohort.join(cohorts)
    joined.params, joined.buffers = {"w": torch.randn(6, 2)}, {}
    joined.losses, joined.taken = torch.randn(6), torch.ones(6, dtype=torch.int64)
    joined.share(cohorts)
    return cohorts, joined


def test_each_server_has_its_part_as_views() -> None:
    cohorts = gathered()
    assert [cohort.sizes.tolist() for cohort in cohorts] == [[1, 2], [3], [4, 5, 6]]
    assert [cohort.state["dual"].tolist() for cohort in cohorts] == [[0, 1], [2], [3, 4, 5]]
    assert cohorts[2].received["w"].tolist() == [[4, 5]] * 3
    assert cohorts[2].received["w"].untyped_storage().data_ptr() == MODELS["w"].untyped_storage().data_ptr()


def test_what_nobody_has_read_stays_in_one_piece() -> None:
    cohorts = gathered()
    whole = whole_of(cohorts)
    assert whole is not None
    assert together(cohorts, "sizes") is whole.fields["sizes"]
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
    assert whole_of(chosen) is None
    assert together(chosen, "sizes").tolist() == [size for cohort in chosen for size in cohort.sizes.tolist()]


def test_cohorts_of_two_wholes_are_put_together_anew() -> None:
    mixed = [gathered()[0], *gathered()[1:]]
    assert whole_of(mixed) is None
    assert together(mixed, "sizes").tolist() == [1, 2, 3, 4, 5, 6]


def test_what_was_trained_together_is_shared_and_found_again() -> None:
    cohorts, joined = trained()
    assert torch.equal(cohorts[2].params["w"], joined.params["w"][3:])
    assert torch.equal(together(cohorts, "losses"), joined.losses)
    assert Cohort.join_kept(cohorts).taken.tolist() == [1] * 6


@pytest.mark.parametrize("due", [[0, 2], [2, 1]])
def test_some_servers_of_a_whole_can_train_alone(due: list[int]) -> None:
    cohorts = gathered()
    stepping = [cohorts[k] for k in due]
    joined = Cohort.join(stepping)
    joined.params, joined.buffers, joined.losses = {"w": torch.randn(len(joined.clients), 2)}, {}, torch.zeros(5)
    joined.share(stepping)
    first = len(stepping[0].clients)
    assert torch.equal(stepping[1].params["w"], joined.params["w"][first:])
    assert stepping[1].sizes.tolist() == gathered()[due[1]].sizes.tolist()
    assert stepping[0].received["b"].tolist() == [float(due[0])] * first


def test_field_that_is_filled_later_is_read_too_early_in_a_whole_as_well() -> None:
    with pytest.raises(AttributeError, match="weights is read too early"):
        gathered()[0].weights  # noqa: B018  # reading it is the point


def test_whole_of_one_server_is_a_cohort_as_any_other() -> None:
    [cohort] = gathered([2])
    kept: dict[str, Any] = vars(cohort)
    assert whole_of([cohort]) is None
    assert {"sizes", "received", "state", "taken", "memory"} <= set(kept)
