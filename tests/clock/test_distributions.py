"""Laws of the distributions: mean and quantile belong together, draws are keyed, bad options are refused by name."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from fedlit.clock import Constant, Distribution, Exponential, LogNormal, Uniform, Weibull
from fedlit.errors import ConfigError
from fedlit.keys import Purpose, uniforms

POSITIVE = st.floats(0.01, 100)
DISTRIBUTIONS = st.one_of(
    st.builds(Exponential, POSITIVE),
    st.builds(Weibull, st.floats(0.4, 10), POSITIVE),
    st.builds(LogNormal, POSITIVE, st.floats(0, 1.5)),
    st.builds(lambda low, width: Uniform(low, low + width), st.floats(0, 100), st.floats(0, 100)),
    st.builds(Constant, st.floats(0, 100)),
)
PATIENT = settings(deadline=None, max_examples=60)


@PATIENT
@given(DISTRIBUTIONS)
def test_mean_is_the_integral_of_the_quantile(distribution: Distribution) -> None:
    def at(v: float) -> float:  # u = Φ(v) spreads both tails, where the quantile may be steep
        return float(distribution.quantile(stats.norm.cdf(v))) * stats.norm.pdf(v)

    below, _ = integrate.quad(at, -9, 0, limit=200)
    above, _ = integrate.quad(at, 0, 7.5, limit=200)
    assert below + above == pytest.approx(distribution.expected(), rel=1e-5, abs=1e-12)


@PATIENT
@given(DISTRIBUTIONS, st.lists(st.floats(0, 1, exclude_max=True), min_size=2))
def test_quantile_never_falls_and_is_never_negative(distribution: Distribution, shares: list[float]) -> None:
    seconds = distribution.quantile(np.sort(shares))
    assert np.isfinite(seconds).all()
    assert (seconds >= 0).all()
    assert (np.diff(seconds) >= -1e-12 * seconds[1:]).all()


@pytest.mark.parametrize(
    ("distribution", "reference"),
    [
        (Exponential(2.0), stats.expon(scale=2.0)),
        (Weibull(0.5, 3.0), stats.weibull_min(0.5, scale=3.0)),
        (LogNormal(2.0, 0.7), stats.lognorm(0.7, scale=2.0 * math.exp(-(0.7**2) / 2))),
        (Uniform(1.0, 4.0), stats.uniform(1.0, 3.0)),
    ],
    ids=["Exponential", "Weibull", "LogNormal", "Uniform"],
)
def test_quantile_and_mean_equal_scipys(distribution: Distribution, reference: stats.rv_continuous) -> None:
    shares = np.linspace(0.0, 0.999999, 1001)
    np.testing.assert_allclose(distribution.quantile(shares), reference.ppf(shares), rtol=1e-12)
    assert distribution.expected() == pytest.approx(reference.mean(), rel=1e-12)


def test_weibull_with_shape_one_is_exponential() -> None:
    shares = np.linspace(0, 0.999, 50)
    np.testing.assert_allclose(Weibull(1.0, 2.0).quantile(shares), Exponential(2.0).quantile(shares), rtol=1e-15)


@PATIENT
@given(DISTRIBUTIONS)
def test_draw_is_the_quantile_of_the_clients_own_uniform_number(distribution: Distribution) -> None:
    drawn = distribution.draw(3, Purpose.ARRIVAL, 5, [7, 2])
    own = [uniforms(3, Purpose.ARRIVAL, client, round=5)[0, 0] for client in (7, 2)]
    np.testing.assert_array_equal(drawn, distribution.quantile(np.array(own)))


BAD = [
    ("Exponential.mean", lambda bad: Exponential(bad)),
    ("Weibull.shape", lambda bad: Weibull(bad, 1.0)),
    ("Weibull.scale", lambda bad: Weibull(1.0, bad)),
    ("LogNormal.mean", lambda bad: LogNormal(bad, 1.0)),
    ("LogNormal.sigma", lambda bad: LogNormal(1.0, bad)),
    ("Uniform.low", lambda bad: Uniform(bad, 1.0)),
    ("Uniform.high", lambda bad: Uniform(0.0, bad)),
    ("Constant.value", lambda bad: Constant(bad)),
]


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("key", "build"), BAD, ids=[key for key, _ in BAD])
def test_option_that_is_negative_or_not_finite_is_refused_by_name(
    key: str, build: Callable[[float], Distribution], bad: float
) -> None:
    with pytest.raises(ConfigError, match=rf"^{key} is {bad}\. Set it"):
        build(bad)


@pytest.mark.parametrize(
    "build",
    [lambda: Exponential(0.0), lambda: Weibull(0.0, 1.0), lambda: Weibull(1.0, 0.0), lambda: LogNormal(0.0, 1.0)],
)
def test_zero_is_refused_where_the_distribution_has_none(build: Callable[[], Distribution]) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        build()


def test_uniform_with_exchanged_ends_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Uniform.low is 2.0 and Uniform.high is 1.0"):
        Uniform(2.0, 1.0)


def test_weibull_whose_numbers_leave_the_floats_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Weibull.shape is 0.001. Set it to 0.01 or more"):
        Weibull(0.001, 1.0)
    assert math.isfinite(Weibull(0.01, 1.0).expected())
    assert np.isfinite(Weibull(0.01, 1.0).quantile(1 - 2.0**-53)).all()
