"""Laws of the latencies: a client's seconds are its own, and add up as the equations say."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlit.clock import Constant, Exponential, Latency, LogNormal, Uniform, Weibull
from fedlit.errors import ConfigError
from fedlit.keys import Purpose

RICH = {
    name: Latency(
        arrival=Weibull(0.7, 2.0),
        compute=LogNormal(1.0, 0.5),
        processing=name,
        network=Uniform(0.0, 3.0),
        speed=LogNormal(1.0, 1.0),
    )
    for name in ("product", "sum")
}
PATIENT = settings(deadline=None, max_examples=40)


@pytest.mark.parametrize("latency", RICH.values(), ids=RICH)
@PATIENT
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**31), st.data())
def test_draws_do_not_depend_on_order_nor_on_who_else_is_asked(
    latency: Latency, seed: int, round: int, data: st.DataObject
) -> None:
    clients = data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=30, unique=True))
    work = {client: client % 11 for client in clients}
    some = data.draw(st.permutations(clients))[: data.draw(st.integers(1, len(clients)))]
    arrivals = dict(zip(clients, latency.arrivals(seed, round, clients), strict=True))
    durations = dict(zip(clients, latency.durations(seed, round, clients, list(work.values())), strict=True))
    assert latency.arrivals(seed, round, some).tolist() == [arrivals[client] for client in some]
    again = latency.durations(seed, round, some, [work[client] for client in some])
    assert again.tolist() == [durations[client] for client in some]


def test_round_seed_and_client_give_other_draws_but_the_same_speed() -> None:
    latency = RICH["product"]
    here = latency.durations(0, 3, [5], 2)
    assert len({here[0], *latency.durations(0, 4, [5], 2), *latency.durations(1, 3, [5], 2)}) == 3
    assert latency.speeds(0, [5]) != latency.speeds(0, [6])
    assert latency.speeds(0, [5]) != latency.speeds(1, [5])


def test_duration_is_arrival_plus_work_over_speed_plus_both_ways() -> None:
    latency, clients, work = RICH["product"], np.arange(50), np.arange(50) % 6
    one_unit = latency.compute.draw(7, Purpose.COMPUTE, 2, clients)
    ways = sum(latency.network.draw(7, Purpose.NETWORK, 2, clients, index=way) for way in (0, 1))
    expected = latency.arrivals(7, 2, clients) + work * one_unit / latency.speeds(7, clients) + ways
    np.testing.assert_allclose(latency.durations(7, 2, clients, work), expected, rtol=1e-15)


def test_sum_adds_one_draw_for_each_unit_and_a_share_of_the_last() -> None:
    latency = Latency(Constant(0.0), Exponential(1.0), processing="sum")
    units = np.array([latency.durations(0, 0, [9], work)[0] for work in range(12)])
    single = np.diff(units)
    assert units[0] == 0
    assert len(set(single.tolist())) == 11  # a draw of its own each
    assert single[0] == pytest.approx(Latency(Constant(0.0)).durations(0, 0, [9], 1)[0])  # the product's draw
    assert latency.durations(0, 0, [9], 6.25)[0] == pytest.approx(units[6] + 0.25 * single[6])


def test_product_multiplies_one_draw() -> None:
    latency = Latency(Constant(0.0))
    np.testing.assert_allclose(
        latency.durations(0, 0, [9] * 4, [0, 1, 2, 7]) / latency.durations(0, 0, [9], 1), [0, 1, 2, 7]
    )


def test_ways_down_and_up_are_independent() -> None:
    latency = Latency(Constant(0.0), Constant(0.0), network=Uniform(0.0, 1.0))
    both = latency.durations(0, 0, np.arange(20_000), 0)
    assert both.mean() == pytest.approx(1.0, abs=0.01)
    assert both.var() == pytest.approx(2 / 12, rel=0.03)  # 4 / 12 were it the same draw twice


@pytest.mark.parametrize(("per", "units"), [("local_step", [0, 5, 12]), ("epoch", [0, 0.5, 3]), ("round", [0, 1, 1])])
def test_work_is_counted_in_the_unit_of_the_option(per: str, units: list[float]) -> None:
    assert Latency(per=per).work([0, 5, 12], [10, 10, 4]).tolist() == units  # type: ignore[arg-type]


def test_hundred_thousand_arrivals_take_well_under_a_second() -> None:
    latency, clients, times = Latency(), np.arange(100_000), []
    for _ in range(3):
        begin = time.perf_counter()
        latency.arrivals(0, 0, clients)
        times.append(time.perf_counter() - begin)
    assert min(times) < 0.5


def test_bad_options_and_bad_work_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Latency.per is 'week'. Set it to local_step, epoch or round"):
        Latency(per="week")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"Latency.processing is 'both'. Set it to product or sum"):
        Latency(processing="both")  # type: ignore[arg-type]
    for work in (-1, np.nan, np.inf):
        with pytest.raises(ConfigError, match="A client's work is"):
            Latency().durations(0, 0, [0, 1], [1, work])
    with pytest.raises(ConfigError, match=r"Latency.speed gives client 4 the speed 0"):
        Latency(speed=Constant(0.0)).speeds(0, [4])
