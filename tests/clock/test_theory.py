"""The clock against theory: ratios of order statistics, and the cloud latencies of the FedBCD paper. -s prints them."""

from functools import cache

import numpy as np
import pytest
from scipy import integrate, special

from fedlit.clock import Distribution, Exponential, Latency, Weibull
from fedlit.keys import Purpose, uniforms

DISTRIBUTIONS = {"exponential": Exponential(2.0), "Weibull 0.5": Weibull(0.5, 1.0), "Weibull 2": Weibull(2.0, 1.0)}
ROUNDS = {10: 60_000, 100: 10_000, 1000: 3_000}
"""Servers N -> fresh rounds: the standard error of every ratio is below 0.7 %."""


def expected_order_statistic(distribution: Distribution, place: int, count: int) -> float:
    """E τ_(B) of N independent draws: the integral of the quantile at Beta(B, N - B + 1), over a normal variable."""

    def at(v: float) -> float:
        u = special.betaincinv(place, count - place + 1, special.ndtr(v))
        return float(distribution.quantile(u)) * np.exp(-v * v / 2) / np.sqrt(2 * np.pi)

    value, _ = integrate.quad(at, -8, 6, limit=200)  # beyond 6, u is 1 in floats; a share of 1e-9 is left out
    return float(value)


def ratios(distribution: Distribution, count: int, places: list[int]) -> np.ndarray:
    """r_{B,N} of the clock's arrivals: a round's client ids are different in each, as N servers drawn afresh."""
    totals = np.zeros(count)
    pieces = 4
    for piece in range(pieces):
        clients = np.arange(count * ROUNDS[count] // pieces)
        seconds = Latency(arrival=distribution).arrivals(piece, 0, clients).reshape(-1, count)
        totals += np.sort(seconds, axis=1).sum(axis=0)
    return totals[np.array(places) - 1] / totals[-1]


@pytest.mark.parametrize("count", ROUNDS)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_ratios_of_fresh_draws_equal_the_order_statistics(distribution: Distribution, count: int) -> None:
    places = [count * share // 10 for share in (2, 3, 5, 7, 9)]
    slowest = expected_order_statistic(distribution, count, count)
    theory = np.array([expected_order_statistic(distribution, place, count) for place in places]) / slowest
    drawn = ratios(distribution, count, places)
    for place, r, exact in zip(places, drawn, theory, strict=True):
        print(f"\n{distribution}  N {count:4d}  B {place:3d}  r {r:.4f}  exact {exact:.4f}", end="")
    np.testing.assert_allclose(drawn, theory, rtol=0.02)


@pytest.mark.parametrize("place", [1, 3, 5, 7, 10])
def test_the_integral_gives_the_harmonic_numbers_for_exponential_draws(place: int) -> None:
    harmonic = sum(1 / n for n in range(11 - place, 11))
    assert expected_order_statistic(Exponential(2.0), place, 10) == pytest.approx(2 * harmonic, rel=1e-6)


@pytest.mark.parametrize(("shape", "known"), [(0.5, [0.0149, 0.0497, 0.1371]), (2.0, [0.3318, 0.4674, 0.6127])])
def test_the_integral_gives_the_known_ratios_for_weibull_draws(shape: float, known: list[float]) -> None:
    slowest = expected_order_statistic(Weibull(shape, 1.0), 10, 10)
    exact = [expected_order_statistic(Weibull(shape, 1.0), place, 10) / slowest for place in (3, 5, 7)]
    np.testing.assert_allclose(exact, known, atol=6e-5)


SERVERS, CLIENTS = 10, 10
CLOUD_ROUNDS = 20_000
REFERENCE = {
    ("product", 3): [6.30, 15.001, 0.220, 0.322, 0.4578],
    ("product", 5): [8.285, 17.504, 0.2868, 0.3881, 0.5163],
    ("product", 6): [9.11, 18.488, 0.313, 0.412, 0.5368],
    ("sum", 3): [5.40, 9.254, 0.418, 0.529, 0.649],
}
"""(processing, active clients of a server) -> E τ_n, E max τ_n, and r_{B,10} for B = 3, 5, 7: exact, by quadrature."""


@cache
def arrivals_of_clouds() -> tuple[np.ndarray, np.ndarray]:
    """(servers of all rounds, clients): ids by arrival, and K uniform on 1 to 5 in the same order."""
    clients = np.arange(CLOUD_ROUNDS * SERVERS * CLIENTS)
    order = np.argsort(Latency().arrivals(1, 0, clients).reshape(-1, CLIENTS), axis=1)
    ids = np.take_along_axis(clients.reshape(-1, CLIENTS), order, axis=1)[:, :6]
    work = 1 + np.floor(5 * uniforms(1, Purpose.WORK, ids.ravel())[:, 0]).reshape(ids.shape)
    return ids, work


@pytest.mark.parametrize(("processing", "active"), REFERENCE)
def test_cloud_rounds_last_as_long_as_the_reference_says(processing: str, active: int) -> None:
    ids, work = (values[:, :active] for values in arrivals_of_clouds())
    latency = Latency(Exponential(2.0), Exponential(1.0), processing=processing)  # type: ignore[arg-type]
    durations = latency.durations(1, 0, ids.ravel(), work.ravel()).reshape(-1, active)
    servers = np.sort(durations.max(axis=1).reshape(-1, SERVERS), axis=1)
    means = servers.mean(axis=0)
    measured = [servers.mean(), means[-1], *(means[[2, 4, 6]] / means[-1])]
    shown = (
        (f"{value:.4f}", f"({known})") for value, known in zip(measured, REFERENCE[processing, active], strict=True)
    )
    print(f"\n{processing:7s} |Q| {active}  E tau, sync, r_3, r_5, r_7: ", *(" ".join(pair) for pair in shown), end="")
    np.testing.assert_allclose(measured, REFERENCE[processing, active], rtol=0.01)
