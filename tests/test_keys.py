"""Laws of the keyed draws: a stream belongs to its key, whoever asks for it, whenever and how often."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedlit.keys import Purpose, generator, torch_seed, uniforms, words

WORDS = st.integers(0, 2**32 - 1)
COMPONENTS = {"seed": WORDS, "purpose": st.sampled_from(Purpose), "round": WORDS, "client": WORDS, "index": WORDS}
KEYS = st.fixed_dictionaries(COMPONENTS)
CHANGES = st.sampled_from(list(COMPONENTS)).flatmap(lambda name: st.tuples(st.just(name), COMPONENTS[name]))
PATIENT = settings(deadline=None, max_examples=50)  # a busy machine is not a failure

Key = dict[str, Any]


def first(key: Key, count: int = 4) -> list[float]:
    return generator(**key).random(count).tolist()


@PATIENT
@given(KEYS)
def test_same_key_gives_the_same_stream(key: Key) -> None:
    assert first(key) == first(key)


@PATIENT
@given(KEYS, CHANGES)
def test_any_other_component_gives_another_stream(key: Key, change: tuple[str, Any]) -> None:
    name, value = change
    assume(key[name] != value)
    assert first(key) != first(key | {name: value})


@PATIENT
@given(KEYS)
def test_exchanged_components_give_another_stream(key: Key) -> None:
    assume(key["round"] != key["client"])
    assert first(key) != first(key | {"round": key["client"], "client": key["round"]})


@PATIENT
@given(st.lists(KEYS, min_size=2, max_size=5))
def test_draws_do_not_depend_on_the_order_in_which_streams_are_asked_for(keys: list[Key]) -> None:
    assert [first(key) for key in keys] == [first(key) for key in reversed(keys)][::-1]


@PATIENT
@given(KEYS, KEYS)
def test_draws_do_not_depend_on_other_streams_that_are_drawn_in_between(key: Key, other: Key) -> None:
    stream, disturbing = generator(**key), generator(**other)
    drawn = []
    for _ in range(4):
        drawn.append(stream.random())
        disturbing.random(3)
    assert drawn == first(key)


@pytest.mark.parametrize("component", ["round", "client", "index"])
def test_neighbouring_streams_share_no_number(component: str) -> None:
    here, there = (generator(0, Purpose.BATCHES, **{component: value}).bit_generator for value in (7, 8))
    assert not set(here.random_raw(10_000).tolist()) & set(there.random_raw(10_000).tolist())


def test_numbers_are_spread_evenly_over_neighbouring_clients() -> None:
    draws = np.array([generator(0, Purpose.BATCHES, client=client).random() for client in range(4000)])
    assert abs(draws.mean() - 0.5) < 4 / np.sqrt(12 * len(draws))


def test_numbers_of_the_purposes_never_change() -> None:
    pinned = {"COHORT": 1, "BATCHES": 2, "DROPOUT": 3, "WORK": 4, "DATA": 5, "SPLIT": 6, "EVALUATE": 7, "CORRUPT": 8}
    pinned |= {"ARRIVAL": 9, "COMPUTE": 10, "SPEED": 11, "ABSENCE": 12, "NETWORK": 13}
    assert {name: Purpose[name].value for name in pinned} == pinned


def test_stream_of_a_key_never_changes() -> None:
    raw = generator(7, Purpose.BATCHES, round=3, client=11, index=2).bit_generator.random_raw(2)
    assert raw.tolist() == [11337538804643644478, 15472288202227067991]


@PATIENT
@given(KEYS, st.integers(0, 2**64 - 1), st.lists(WORDS, min_size=1, max_size=5), st.integers(0, 3))
def test_words_of_many_clients_are_those_of_their_own_streams(
    key: Key, seed: int, clients: list[int], block: int
) -> None:
    key = key | {"seed": seed}
    streams = [generator(**key | {"client": client}).bit_generator.random_raw(16) for client in clients]
    del key["client"]
    own = [stream[4 * block : 4 * block + 4].tolist() for stream in streams]
    assert words(**key, clients=clients, block=block).tolist() == own


def test_every_client_may_be_asked_for_a_round_of_its_own() -> None:
    clients, rounds = np.array([7, 0, 3, 7]), np.array([0, 2**31, 5, 1])
    together = words(3, Purpose.ARRIVAL, clients, round=rounds)
    apart = [words(3, Purpose.ARRIVAL, [client], round=int(own)) for client, own in zip(clients, rounds, strict=True)]
    np.testing.assert_array_equal(together, np.concatenate(apart))


def test_words_do_not_depend_on_how_many_clients_are_asked() -> None:
    everybody = words(5, Purpose.ARRIVAL, np.arange(20_000), round=2)
    some = np.array([19_999, 0, 8191, 8192, 77])
    np.testing.assert_array_equal(words(5, Purpose.ARRIVAL, some, round=2), everybody[some])
    assert words(5, Purpose.ARRIVAL, []).shape == (0, 4)


def test_uniform_numbers_lie_between_0_and_1_and_are_spread_evenly() -> None:
    drawn = np.sort(uniforms(0, Purpose.ARRIVAL, np.arange(50_000)).ravel())
    assert drawn[0] > 0
    assert drawn[-1] < 1
    even = (np.arange(len(drawn)) + 0.5) / len(drawn)
    assert np.abs(drawn - even).max() < 2 / np.sqrt(len(drawn))  # Kolmogorov's distance


@PATIENT
@given(KEYS)
def test_no_global_stream_is_touched(key: Key) -> None:
    numpy_before, torch_before = np.random.get_state()[1].tolist(), torch.random.get_rng_state()
    first(key)
    assert np.random.get_state()[1].tolist() == numpy_before
    assert torch.equal(torch.random.get_rng_state(), torch_before)


@PATIENT
@given(WORDS, WORDS, WORDS)
def test_seed_for_torch_differs_from_client_to_client(seed: int, round: int, client: int) -> None:
    other = (client + 1) % 2**32
    seeds = [torch_seed(seed, Purpose.DROPOUT, round=round, client=who) for who in (client, client, other)]
    assert seeds[0] == seeds[1] != seeds[2]
