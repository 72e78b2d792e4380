"""Laws of the samplers: a cohort is drawn from (seed, round) and nothing else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlit import AllSampler, FixedSampler, SizeSampler, UniformSampler
from fedlit.errors import ConfigError
from fedlit.server.sampling import Sampler, find_sampler

SIZES = np.array([1, 2, 3, 4, 10, 20])
DRAWN = pytest.mark.parametrize("sampler", [UniformSampler(), SizeSampler()], ids=["uniform", "size"])
SURELY = 21  # a chi-square with 5 degrees of freedom stays below in 99.9 % of all cases
SEEDS, ROUNDS = st.integers(0, 2**32 - 1), st.integers(0, 10**6)
PATIENT = settings(deadline=None, max_examples=50)  # a busy machine is not a failure


def cohort(sampler: Sampler, seed: int, round: int, count: int = 3) -> list[int]:
    return sampler.select(seed, round, SIZES, count).train


def chi_square(sampler: Sampler, shares: np.ndarray, rounds: int = 3000) -> float:
    """Of how often each client is drawn when one is drawn at a time."""
    counts = np.bincount([cohort(sampler, 0, round, count=1)[0] for round in range(rounds)], minlength=len(SIZES))
    expected = rounds * shares
    return float(((counts - expected) ** 2 / expected).sum())


@DRAWN
@PATIENT
@given(seed=SEEDS, round=ROUNDS)
def test_cohort_belongs_to_its_seed_and_round(sampler: Sampler, seed: int, round: int) -> None:
    np.random.seed(round)
    first = cohort(sampler, seed, round)
    np.random.seed(round + 1)
    cohort(sampler, seed + 1, round + 5)
    assert cohort(sampler, seed, round) == first


@DRAWN
@PATIENT
@given(seed=SEEDS, round=ROUNDS, count=st.integers(1, len(SIZES)))
def test_cohort_has_as_many_different_clients_as_asked_in_ascending_order(
    sampler: Sampler, seed: int, round: int, count: int
) -> None:
    drawn = cohort(sampler, seed, round, count)
    assert drawn == sorted(set(drawn))
    assert len(drawn) == count
    assert set(drawn) <= set(range(len(SIZES)))


@DRAWN
def test_other_seed_draws_other_cohorts(sampler: Sampler) -> None:
    assert [cohort(sampler, 0, round) for round in range(9)] != [cohort(sampler, 1, round) for round in range(9)]


@DRAWN
def test_cohorts_change_from_round_to_round(sampler: Sampler) -> None:
    assert len({tuple(cohort(sampler, 0, round)) for round in range(30)}) > 5


def test_uniform_sampler_draws_everyone_equally_often() -> None:
    assert chi_square(UniformSampler(), np.full(len(SIZES), 1 / len(SIZES))) < SURELY


def test_size_sampler_draws_in_proportion_to_training_samples() -> None:
    assert chi_square(SizeSampler(), SIZES / SIZES.sum()) < SURELY


def test_size_sampler_does_not_draw_everyone_equally_often() -> None:
    assert chi_square(SizeSampler(), np.full(len(SIZES), 1 / len(SIZES))) > 1000


def test_size_sampler_never_draws_a_client_without_samples() -> None:
    drawn = [SizeSampler().select(0, round, np.array([5, 0, 1, 0]), 2).train for round in range(50)]
    assert drawn == [[0, 2]] * 50


def test_size_sampler_refuses_to_draw_more_clients_than_have_samples() -> None:
    with pytest.raises(ConfigError, match="clients_per_round is 3, but only 2 clients have training samples"):
        SizeSampler().select(0, 0, np.array([5, 0, 1, 0]), 3)


@pytest.mark.parametrize("count", [1, 99])
def test_all_sampler_takes_everyone_whatever_number_is_asked(count: int) -> None:
    assert cohort(AllSampler(), 0, 4, count) == list(range(len(SIZES)))


@pytest.mark.parametrize("round", [0, 7])
def test_fixed_sampler_takes_its_list_in_every_round(round: int) -> None:
    assert cohort(FixedSampler([5, 2]), 0, round, count=1) == [2, 5]


@pytest.mark.parametrize("clients", [[], [1, 1], [-1]], ids=["nobody", "twice", "negative"])
def test_fixed_sampler_refuses_a_list_that_makes_no_sense(clients: list[int]) -> None:
    with pytest.raises(ConfigError, match="give a list of different ids"):
        FixedSampler(clients)


def test_fixed_sampler_refuses_a_client_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match="names client 6, but the data have clients 0 to 5"):
        cohort(FixedSampler([0, 6]), 0, 0)


@pytest.mark.parametrize(
    "sampler", [UniformSampler(), AllSampler(), SizeSampler(), FixedSampler([0])], ids=lambda s: type(s).__name__
)
def test_everyone_who_trains_reports(sampler: Sampler) -> None:
    selection = sampler.select(0, 0, SIZES, 2)
    assert selection.report == selection.train


@pytest.mark.parametrize(("name", "kind"), [("uniform", UniformSampler), ("all", AllSampler), ("size", SizeSampler)])
def test_sampler_is_found_by_its_name(name: str, kind: type[Sampler]) -> None:
    assert type(find_sampler(name)) is kind


def test_sampler_that_is_given_is_taken_as_it_is() -> None:
    given = FixedSampler([1])
    assert find_sampler(given) is given


def test_mistyped_sampler_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="'unifrom', which is not a sampler. Did you mean 'uniform'"):
        find_sampler("unifrom")
