"""Errors say where they happened and stay what they are."""

from types import SimpleNamespace

import pytest

from fedlit.errors import ConfigError, DivergedError, FedlitError, ResumeError, located


def failing(error: BaseException, *places: str) -> None:
    if not places:
        raise error
    with located(places[0]):
        failing(error, *places[1:])


@pytest.mark.parametrize("kind", [ConfigError, ResumeError])
def test_own_errors_say_it_in_their_message(kind: type[FedlitError]) -> None:
    with pytest.raises(kind) as failed:
        failing(kind("Set it to 1."), "in round 3, client 7, local step 12 (training_step)")
    assert str(failed.value) == "Set it to 1. This happened in round 3, client 7, local step 12 (training_step)."


def test_other_errors_keep_type_and_message_and_get_a_note() -> None:
    error = ValueError("no such letter")
    with pytest.raises(ValueError, match="no such letter") as failed:
        failing(error, "in round 3")
    assert failed.value is error
    assert str(error) == "no such letter"
    assert error.__notes__ == ["This happened in round 3."]


def test_places_inside_each_other_are_all_named_the_innermost_first() -> None:
    with pytest.raises(ConfigError, match=r"^No\. This happened in step 2\. This happened in round 3\.$"):
        failing(ConfigError("No."), "in round 3", "in step 2")


def test_diverged_run_names_its_round_and_client_already() -> None:
    with pytest.raises(DivergedError, match="^Round 3: client 7 diverged$") as failed:
        failing(DivergedError("Round 3: client 7 diverged", round=3, client=7), "in round 3")
    assert (failed.value.round, failed.value.client) == (3, 7)


def test_interrupt_is_let_through() -> None:
    with pytest.raises(KeyboardInterrupt) as stopped:
        failing(KeyboardInterrupt(), "in round 3")
    assert not hasattr(stopped.value, "__notes__")


def test_place_may_be_a_function_that_is_called_only_in_an_error() -> None:
    asked: list[str] = []

    def place() -> str:
        asked.append("asked")
        return "in round 3"

    with located(place):
        pass
    assert asked == []
    with pytest.raises(ConfigError, match=r"This happened in round 3\."), located(place):
        raise ConfigError("No.")


def test_wrong_key_in_a_hook_gets_the_keys_that_a_cohort_has() -> None:
    def hook(cohort: SimpleNamespace) -> None:
        cohort.sent["drift"]

    cohort = SimpleNamespace(state={}, sent={"drift.weight": 0, "drift.bias": 1})
    with pytest.raises(KeyError) as failed, located("in round 3"):
        hook(cohort)
    assert failed.value.__notes__ == ["This happened in round 3.", "cohort.sent has the keys drift.weight, drift.bias."]


def test_wrong_key_elsewhere_gets_no_keys() -> None:
    with pytest.raises(KeyError) as failed:
        failing(KeyError("drift"), "in round 3")
    assert failed.value.__notes__ == ["This happened in round 3."]
