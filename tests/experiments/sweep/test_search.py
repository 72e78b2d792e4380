"""Which values trial k gets: all of a grid in W&B's order, repeatable draws, and a search that learns."""

import sys
from pathlib import Path
from typing import Any

import pytest

from fedlit.errors import ConfigError
from fedlit.experiments.sweep.search import Bayes, make_search
from fedlit.experiments.trials import Trial
from tests.experiments.sweep.sweeps import make_sweep

RANGES: dict[str, Any] = {
    "model.lr": {"distribution": "log_uniform_values", "min": 1e-4, "max": 1.0},
    "model.batch_size": {"values": [10, 20]},
    "model.local_epochs": {"min": 1, "max": 9},
    "model.momentum": {"value": 0.5},
}


def test_a_grid_holds_every_combination_by_name_and_the_last_changes_fastest(tmp_path: Path) -> None:
    parameters = {"b": {"values": [1, 2]}, "a": {"values": ["x", "y"]}, "c": {"value": 7}}
    search = make_search(make_sweep(tmp_path, parameters), None, 0)
    assert [tuple(search.propose(k, []).items()) for k in range(search.total)] == [
        (("a", "x"), ("b", 1), ("c", 7)),
        (("a", "x"), ("b", 2), ("c", 7)),
        (("a", "y"), ("b", 1), ("c", 7)),
        (("a", "y"), ("b", 2), ("c", 7)),
    ]


def test_a_grid_takes_whole_numbers_steps_and_no_value_twice(tmp_path: Path) -> None:
    file = make_sweep(
        tmp_path,
        {
            "a": {"min": 1, "max": 3},
            "b": {"distribution": "q_uniform", "min": 0.0, "max": 0.4, "q": 0.1},
            "c": {"values": [5, 5]},
        },
    )
    search = make_search(file, None, 0)
    assert search.total == 12
    assert search.propose(11, []) == {"a": 3, "b": 0.3, "c": 5}


def test_a_grid_ends_with_the_runs_that_were_asked_for(tmp_path: Path) -> None:
    file = make_sweep(tmp_path, {"a": {"min": 1, "max": 30}}, run_cap=20)
    assert make_search(file, None, 0).total == 20
    assert make_search(file, 7, 0).total == 7
    assert make_search(file, 40, 0).total == 30


def test_a_grid_refuses_what_has_no_end(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"parameters\.model\.lr is log_uniform_values, of which a grid cannot"):
        make_search(make_sweep(tmp_path, RANGES), None, 0)


@pytest.mark.parametrize("method", ["random", "bayes"])
def test_a_method_without_an_end_needs_a_number_of_runs(tmp_path: Path, method: str) -> None:
    with pytest.raises(ConfigError, match="--runs 20"):
        make_search(make_sweep(tmp_path, RANGES, method=method), None, 0)
    assert make_search(make_sweep(tmp_path, RANGES, method=method, run_cap=4), None, 0).total == 4


def test_a_random_trial_depends_on_the_seed_and_its_number_alone(tmp_path: Path) -> None:
    file = make_sweep(tmp_path, RANGES, method="random")
    one, other = make_search(file, 20, 1), make_search(file, 30, 1)
    drawn = [one.propose(k, []) for k in range(20)]
    assert [other.propose(k, []) for k in reversed(range(20))] == drawn[::-1]
    assert len({values["model.lr"] for values in drawn}) == 20
    assert make_search(file, 20, 2).propose(0, []) != drawn[0]


def value_of(parameters: dict[str, Any]) -> float:
    """Best at a learning rate of 0.01 and 20 samples."""
    from math import log10

    return -((log10(parameters["model.lr"]) + 2) ** 2) - (parameters["model.batch_size"] != 20)


def searched(search: Any, total: int) -> list[Trial]:
    trials: list[Trial] = []
    for k in range(total):
        parameters = search.propose(k, trials)
        trials.append(Trial(f"trial-{k}", parameters, status="finished", value=value_of(parameters)))
    return trials


def test_a_bayesian_search_learns_and_repeats_itself(tmp_path: Path) -> None:
    search = make_search(make_sweep(tmp_path, RANGES, method="bayes"), 40, 3)
    trials = searched(search, 40)
    assert sum(t.value or 0.0 for t in trials[-10:]) > sum(t.value or 0.0 for t in trials[:10])
    resumed = trials[:25]  # as they are recorded
    assert search.propose(25, resumed) == trials[25].parameters
    assert {trial.parameters["model.momentum"] for trial in trials} == {0.5}


def test_a_bayesian_search_leaves_the_corner_where_trials_fail(tmp_path: Path) -> None:
    search = Bayes(make_sweep(tmp_path, RANGES, method="bayes"), 60, 0)
    trials: list[Trial] = []
    for k in range(50):
        parameters = search.propose(k, trials)
        failed = parameters["model.lr"] > 0.05
        trial = Trial(f"trial-{k}", parameters, status="failed" if failed else "finished")
        trial.value = None if failed else -float(parameters["model.local_epochs"])
        trials.append(trial)
    early, late = ([trial.status == "failed" for trial in part] for part in (trials[:20], trials[-20:]))
    assert sum(late) < sum(early)


def test_a_bayesian_search_takes_running_trials_and_rounded_ends(tmp_path: Path) -> None:
    ranges = {"model.lr": {"distribution": "log_uniform_values", "min": 1.23456789e-4, "max": 0.987654321}}
    search = make_search(make_sweep(tmp_path, ranges, method="bayes"), 9, 0)
    trials = [
        Trial("trial-0", {"model.lr": 1.23457e-4}, status="running"),
        Trial("trial-1", {"model.lr": 0.987654}, status="finished", value=1.0),
    ]
    assert 1e-4 < search.propose(2, trials)["model.lr"] < 1.0


def test_without_optuna_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedlit\[sweep\]'"):
        make_search(make_sweep(tmp_path, RANGES, method="bayes"), 5, 0)
