"""Laws of what outlives a round: rows belong to their client, and to nobody else."""

import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedlit import ClientStates

COHORTS = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=6, unique=True), max_size=12)
PATIENT = settings(deadline=None, max_examples=50)  # a busy machine is not a failure


def defaults(clients: list[int]) -> dict[str, Tensor]:
    """What clients have before their first round: a number and a whole model."""
    return {"dual": torch.full((len(clients),), -1.0), "local.w": torch.full((len(clients), 2, 2), -2.0)}


def rows_of(clients: list[int], mark: float) -> dict[str, Tensor]:
    """Rows that tell who wrote them and when."""
    dual = torch.tensor([client + mark for client in clients])
    return {"dual": dual, "local.w": dual.view(-1, 1, 1).expand(-1, 2, 2)}


def states_after(cohorts: list[list[int]]) -> ClientStates:
    """Each cohort in turn writes its rows, marked with hundreds of its number."""
    states = ClientStates()
    for number, clients in enumerate(cohorts, start=1):
        states.update(clients, rows_of(clients, 100.0 * number))
    return states


def expected_duals(cohorts: list[list[int]], clients: list[int]) -> list[float]:
    """The same as a plain dict would hold it."""
    kept = {client: 100.0 * number + client for number, cohort in enumerate(cohorts, start=1) for client in cohort}
    return [kept.get(client, -1.0) for client in clients]


def duals(states: ClientStates, clients: list[int]) -> list[float]:
    return rows_in(states, clients)["dual"].tolist()


def rows_in(states: ClientStates, clients: list[int]) -> dict[str, Tensor]:
    """All rows of these clients, or the defaults."""
    return states.rows(clients, ["dual", "local.w"], lambda: defaults(clients))


@PATIENT
@given(st.lists(st.integers(0, 30), min_size=1, unique=True))
def test_rows_of_untouched_clients_are_the_defaults(clients: list[int]) -> None:
    rows = rows_in(ClientStates(), clients)
    assert all(torch.equal(rows[name], value) for name, value in defaults(clients).items())


@PATIENT
@given(COHORTS)
def test_every_client_reads_what_it_wrote_last_and_nothing_else(cohorts: list[list[int]]) -> None:
    everyone = list(range(31))
    assert duals(states_after(cohorts), everyone) == expected_duals(cohorts, everyone)


@PATIENT
@given(COHORTS)
def test_whole_models_are_kept_like_numbers(cohorts: list[list[int]]) -> None:
    touched = states_after(cohorts).touched
    rows = rows_in(states_after(cohorts), touched)
    assert torch.equal(rows["local.w"], rows["dual"].view(-1, 1, 1).expand(-1, 2, 2))


@PATIENT
@given(COHORTS)
def test_rows_stand_in_the_order_that_is_asked_for(cohorts: list[list[int]]) -> None:
    states, everyone = states_after(cohorts), list(range(31))
    assert duals(states, everyone[::-1]) == duals(states, everyone)[::-1]


@PATIENT
@given(COHORTS)
def test_touched_clients_are_listed_in_the_order_of_their_first_round(cohorts: list[list[int]]) -> None:
    order = list(dict.fromkeys(client for cohort in cohorts for client in cohort))
    states = states_after(cohorts)
    assert (states.touched, [states.has(client) for client in range(31)]) == (order, [k in order for k in range(31)])


def test_clients_met_one_by_one_are_all_kept() -> None:
    cohorts = [[client] for client in range(40)]
    assert duals(states_after(cohorts), list(range(40))) == expected_duals(cohorts, list(range(40)))


@PATIENT
@given(COHORTS, st.lists(st.integers(0, 30), unique=True, max_size=6))
def test_an_update_that_is_taken_back_leaves_no_trace(cohorts: list[list[int]], last: list[int]) -> None:
    """Neither of those whose first it was, nor of rows that nobody had before."""
    states, undisturbed = states_after(cohorts), states_after(cohorts).state_dict()
    states.commit()
    states.update(last, rows_of(last, 9000.0) | {"new": torch.ones(len(last))})
    states.discard()
    found = states.state_dict()
    assert found["clients"] == undisturbed["clients"]
    assert found["rows"].keys() == undisturbed["rows"].keys()
    assert all(torch.equal(value, undisturbed["rows"][name]) for name, value in found["rows"].items())


def test_rows_of_clients_that_were_expected_are_never_moved() -> None:
    states = ClientStates()
    states.keep_in_memory(expected=4)
    places = []
    for client in range(4):
        states.update([client], rows_of([client], 0.0))
        places.append(states.column("local.w").data_ptr())
    assert len(set(places)) == 1
    assert duals(states, [3, 0]) == [3.0, 0.0]


def test_changing_the_rows_that_were_read_changes_nothing_that_is_kept() -> None:
    states = states_after([[1, 2]])
    rows_in(states, [1, 2])["dual"].zero_()
    assert duals(states, [1, 2]) == [101.0, 102.0]


def test_reading_rows_leaves_the_defaults_as_they_are() -> None:
    given = defaults([1, 2])
    states_after([[1]]).rows([1, 2], list(given), lambda: given)
    assert given["dual"].tolist() == [-1.0, -1.0]


def test_changing_the_rows_that_were_given_changes_nothing_that_is_kept() -> None:
    states, rows = ClientStates(), rows_of([1, 2], 100.0)
    states.update([1, 2], rows)
    rows["dual"].zero_()
    assert duals(states, [1, 2]) == [101.0, 102.0]


def test_rows_leave_the_graph_of_the_round_behind() -> None:
    states = ClientStates()
    states.update([1], {"dual": torch.ones(1, requires_grad=True) * 2})
    assert not states.column("dual").requires_grad


def test_rows_that_a_callback_kept_in_another_type_come_back_in_the_runs() -> None:
    states = ClientStates()
    states.rows([1], ["mood"], lambda: {"mood": torch.zeros(1)})
    states.update([1], {"mood": torch.tensor([0.25], dtype=torch.float64)})
    for clients, expected in ([1], [0.25]), ([1, 2], [0.25, 0.0]):
        rows = states.rows(clients, ["mood"], lambda clients=clients: {"mood": torch.zeros(len(clients))})["mood"]
        assert (rows.dtype, rows.tolist()) == (torch.float32, expected)


def test_first_values_are_asked_for_new_clients_alone() -> None:
    def never() -> dict[str, Tensor]:
        raise AssertionError("all of them are known")

    assert states_after([[1, 2]]).rows([2, 1], ["dual"], never)["dual"].tolist() == [102.0, 101.0]


def test_column_and_row_name_the_same_numbers() -> None:
    states = states_after([[7, 3], [5]])
    assert states.column("dual").tolist() == [float(states.row("dual", client)) for client in states.touched]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_rows_keep_their_type(dtype: torch.dtype) -> None:
    states = ClientStates()
    states.update([4], {"steps": torch.ones(1, dtype=dtype)})
    assert states.row("steps", 4).dtype == dtype


@PATIENT
@given(COHORTS, COHORTS)
def test_states_loaded_from_a_checkpoint_go_on_as_if_never_saved(
    before: list[list[int]], after: list[list[int]]
) -> None:
    file = io.BytesIO()
    torch.save(states_after(before).state_dict(), file)
    file.seek(0)
    loaded = ClientStates()
    loaded.load_state_dict(torch.load(file, weights_only=True))
    for number, clients in enumerate(after, start=len(before) + 1):
        loaded.update(clients, rows_of(clients, 100.0 * number))
    assert duals(loaded, list(range(31))) == duals(states_after(before + after), list(range(31)))


def test_a_saved_state_does_not_change_with_later_rounds() -> None:
    states = states_after([[1, 2]])
    saved = states.state_dict()
    states.update([1], rows_of([1], 500.0))
    assert (saved["clients"], saved["rows"]["dual"].tolist()) == ([1, 2], [101.0, 102.0])
