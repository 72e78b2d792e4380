"""Laws of the clock: who reports, how long the round lasts, and how its options are written in YAML."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonargparse import ArgumentParser

from fedlit.clock import Clock, Constant, Exponential, Latency, LogNormal, Uniform, Weibull
from fedlit.clock.clock import round_duration_s, who_reports
from fedlit.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "clock.md"
SECONDS = np.array([4.0, 1.0, 3.0, 2.0])


def lost(*who: int) -> np.ndarray:
    return np.isin(np.arange(4), who)


@pytest.mark.parametrize(
    ("gone", "deadline", "reporting", "lasts"),
    [
        pytest.param((), None, [0, 1, 2, 3], 4.0, id="everybody"),
        pytest.param((), 9.0, [0, 1, 2, 3], 4.0, id="everybody before the deadline"),
        pytest.param((), 4.0, [0, 1, 2, 3], 4.0, id="exactly at the deadline"),
        pytest.param((), 2.5, [1, 3], 2.5, id="two are late"),
        pytest.param((0,), None, [1, 2, 3], 3.0, id="a loss that is told"),
        pytest.param((0,), 9.0, [1, 2, 3], 9.0, id="a loss that is waited for"),
        pytest.param((), 0.5, [1], 1.0, id="all are late: the earliest stays"),
        pytest.param((1,), 0.5, [3], 2.0, id="the earliest is lost and the others late"),
        pytest.param((0, 1, 2, 3), None, [1], 1.0, id="all are lost: the earliest stays"),
        pytest.param((0, 1, 2, 3), 9.0, [1], 9.0, id="all are lost before a deadline"),
    ],
)
def test_who_reports_and_how_long_the_round_lasts(
    gone: tuple[int, ...], deadline: float | None, reporting: list[int], lasts: float
) -> None:
    reports = who_reports(SECONDS, lost(*gone), deadline)
    assert np.flatnonzero(reports).tolist() == reporting
    assert round_duration_s(SECONDS, reports, deadline) == lasts


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 50), st.one_of(st.none(), st.floats(0.01, 20)), st.floats(0, 0.99), st.integers(1, 12))
def test_somebody_reports_and_the_round_ends_with_the_last_report_or_later(
    round: int, deadline: float | None, dropout: float, count: int
) -> None:
    answer = Clock(deadline=deadline, dropout=dropout).report_times(3, round, np.arange(count), 2)
    assert answer.reports.any()
    assert answer.duration_s >= answer.seconds[answer.reports].max()
    assert answer.duration_s in (answer.seconds[answer.reports].max(), deadline)


def test_share_of_lost_clients_is_the_dropout_and_each_is_keyed() -> None:
    clock = Clock(dropout=0.3)
    gone = clock.lost(0, 5, np.arange(50_000))
    assert gone.mean() == pytest.approx(0.3, abs=0.01)
    assert clock.lost(0, 5, [77, 3]).tolist() == gone[[77, 3]].tolist()
    assert (clock.lost(0, 6, np.arange(50_000)) != gone).any()
    assert not Clock().lost(0, 5, np.arange(50)).any()


def test_seconds_of_a_round_are_the_latencys() -> None:
    answer = Clock(deadline=3.0).report_times(1, 2, [8, 4], [3, 1])
    assert answer.seconds.tolist() == Latency().durations(1, 2, [8, 4], [3, 1]).tolist()


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_deadline_that_is_no_time_is_refused(bad: float) -> None:
    with pytest.raises(ConfigError, match=rf"trainer.clock.deadline is {bad}\. Set it"):
        Clock(deadline=bad)


@pytest.mark.parametrize("bad", [-0.1, 1.0, math.nan, math.inf])
def test_dropout_that_is_no_probability_is_refused(bad: float) -> None:
    with pytest.raises(ConfigError, match=rf"trainer.clock.dropout is {bad}\. It is a probability"):
        Clock(dropout=bad)


def test_round_without_clients_is_refused() -> None:
    with pytest.raises(ConfigError, match="a round without clients"):
        Clock().report_times(0, 0, [], [])


class Owner:
    """Takes a clock as a trainer does."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock


def from_yaml(text: str) -> Clock | None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Owner)
    config = parser.parse_object(yaml.safe_load(text))
    again = parser.parse_object(yaml.safe_load(parser.dump(config)))  # what a run folder's config.yaml says
    owners = [parser.instantiate(each) for each in (config, again)]
    assert owners[0].clock == owners[1].clock
    clock: Clock | None = owners[0].clock
    return clock


def test_yaml_of_the_page_is_found_by_the_names_of_its_classes() -> None:
    text, _ = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    latency = Latency(Exponential(2), Weibull(0.7, 1), network=Constant(0), speed=LogNormal(1, 0.5))
    assert from_yaml(yaml.safe_dump(yaml.safe_load(text)["trainer"])) == Clock(latency, deadline=20, dropout=0.1)


def test_uniform_in_yaml_is_the_distribution_and_not_the_weighting() -> None:
    text = "clock: {latency: {per: epoch, arrival: {class_path: Uniform, init_args: {low: 1, high: 3}}}}"
    assert from_yaml(text) == Clock(Latency(Uniform(1, 3), per="epoch"))


def test_empty_clock_in_yaml_has_the_papers_latencies_and_none_is_none() -> None:
    paper = Latency(arrival=Exponential(2), compute=Exponential(1), processing="product", network=Constant(0))
    assert from_yaml("clock: {}") == Clock(paper)
    assert from_yaml("{}") is None


@pytest.mark.parametrize("processing", ["product", "sum"])
def test_servers_that_are_asked_together_get_what_each_gets_alone(processing: Any) -> None:
    clock = Clock(Latency(processing=processing, speed=LogNormal(1.0, 0.5)), deadline=6.0, dropout=0.2)
    clients, rounds, work = (
        [np.array([4, 1, 8]), np.array([2, 9])],
        [7, 3],
        [np.array([1.0, 9.5, 3.0]), np.array([2.0, 4.0])],
    )
    numbers = np.repeat(rounds, [3, 2])
    together = clock.reports_of(0, numbers, np.concatenate(clients), np.concatenate(work), [3, 2])
    each = [clock.report_times(0, *own) for own in zip(rounds, clients, work, strict=True)]
    np.testing.assert_array_equal(together[0], np.concatenate([own.seconds for own in each]))
    np.testing.assert_array_equal(together[1], np.concatenate([own.reports for own in each]))
    assert together[2] == [own.duration_s for own in each]
