"""A parameter of a sweep draws what W&B would, and a wrong one is refused with its place."""

from typing import Any

import numpy as np
import pytest

from fedlit.errors import ConfigError
from fedlit.experiments.sweep.parameters import read_parameter


def draws(given: dict[str, Any], count: int = 2000) -> list[Any]:
    parameter = read_parameter("model.lr", given, "sweep.yaml")
    rng = np.random.default_rng(0)
    return [parameter.draw(rng) for _ in range(count)]


@pytest.mark.parametrize(
    ("given", "distribution"),
    [
        ({"value": 3}, "constant"),
        ({"values": [1, 2]}, "categorical"),
        ({"min": 1, "max": 5}, "int_uniform"),
        ({"min": 1, "max": 5.0}, "uniform"),
        ({"min": 0.1, "max": 0.5, "distribution": "log_uniform_values"}, "log_uniform_values"),
    ],
)
def test_the_distribution_is_the_one_that_w_and_b_takes(given: dict[str, Any], distribution: str) -> None:
    assert read_parameter("a", given, "f").distribution == distribution


@pytest.mark.parametrize(
    ("given", "median"),
    [
        ({"min": 2.0, "max": 4.0}, 3.0),
        ({"distribution": "log_uniform_values", "min": 1e-4, "max": 1.0}, 1e-2),
        ({"distribution": "q_uniform", "min": 0.0, "max": 10.0, "q": 0.5}, 5.0),
        ({"min": 1, "max": 9}, 5),
    ],
)
def test_half_of_the_draws_lie_on_each_side_of_the_median(given: dict[str, Any], median: float) -> None:
    ranks = [np.sign(value - median) for value in draws(given)]
    assert np.mean(ranks) == pytest.approx(0.0, abs=0.1), "as many above as below"


def test_draws_stay_in_the_range() -> None:
    drawn = draws({"distribution": "log_uniform_values", "min": 1e-7, "max": 1e-2})
    assert min(drawn) >= 1e-7
    assert max(drawn) <= 1e-2
    assert max(drawn) / min(drawn) > 1e4, "over all powers of ten"


def test_every_value_of_a_list_comes_as_often() -> None:
    drawn = draws({"values": ["a", "b"]})
    assert drawn.count("b") / len(drawn) == pytest.approx(0.5, abs=0.03)


def test_steps_of_a_whole_q_are_whole_numbers_and_others_are_not() -> None:
    assert {type(value) for value in draws({"distribution": "q_uniform", "min": 1, "max": 9, "q": 2}, 50)} == {int}
    assert set(draws({"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.25})) == {0.0, 0.25, 0.5, 0.75, 1.0}


def test_a_draw_has_six_digits_so_that_its_command_line_is_exact() -> None:
    assert all(float(f"{value:.6g}") == value for value in draws({"min": 0.0, "max": 1.0}, 100))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"min": "1e-7", "max": 0.1}, r"parameters\.model\.lr\.min is '1e-7', which is not a number\. .*write a dot"),
        ({"min": 1.0}, "lacks 'max'"),
        ({"min": 2.0, "max": 1.0}, "from 2.0 to 1.0"),
        ({"distribution": "log_uniform_values", "min": 0.0, "max": 1.0}, "no logarithm"),
        ({"distribution": "log_unifrom_values", "min": 0.1, "max": 1.0}, "Did you mean 'log_uniform_values'"),
        (
            {"distribution": "log_normal", "mu": 1.0},
            "'log_normal'. .*fedlit sweep knows constant, categorical, int_uni",
        ),
        ({"distribution": "q_uniform", "min": 0.1, "max": 1.0, "q": 0.0}, "above 0"),
        ({"distribution": "int_uniform", "min": 1.5, "max": 3}, "whole numbers"),
        ({"distribution": "uniform", "mu": 1.0}, "uniform takes min, max"),
        ({"values": []}, "at least one entry"),
        ({"values": 3}, "at least one entry"),
        ({"values": [1, 2], "probabilities": [0.5, 0.5]}, "categorical takes values"),
        ({"parameters": {"lr": {"value": 1}}}, "as one name with dots"),
        ({"value": 1, "values": [1]}, "constant takes value"),
        (0.1, "Give it value, values, or min and max"),
    ],
)
def test_a_wrong_parameter_is_refused_with_its_file_and_key(given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        read_parameter("model.lr", given, "sweep.yaml")
    assert str(refused.value).startswith("sweep.yaml: parameters.model.lr")
