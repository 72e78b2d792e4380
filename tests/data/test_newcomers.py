"""Clients that are held back: who they are, how everybody is numbered, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlit import MNIST, Fresh, Synthetic, TensorData
from fedlit.data.newcomers import order_of
from fedlit.errors import ConfigError
from tests.data.test_base import PATIENT

OPTIONS: dict[str, Any] = {"num_clients": 10, "size_sigma": 1, "val_fraction": 0.2, "adapt_fraction": 0.1}


def ready(newcomers: float, **options: Any) -> Synthetic:
    data = Synthetic(**(OPTIONS | options), newcomers=newcomers)
    data.setup()
    return data


def parts_of(data: Synthetic, client: int) -> list[list[int]]:
    everyone = data.everyone
    return [getattr(everyone, name)[client].tolist() for name in ("train", "val", "test", "adapt")]


@PATIENT
@given(st.integers(2, 200), st.floats(0.001, 0.999), st.integers(0, 2**32 - 1))
def test_a_share_of_the_clients_is_held_back_and_somebody_stays(clients: int, newcomers: float, seed: int) -> None:
    numbers, users = order_of(clients, newcomers, seed)
    assert sorted(numbers.tolist()) == list(range(clients))
    assert clients - users == min(clients - 1, max(1, int(clients * newcomers + 1e-9)))
    assert numbers[:users].tolist() == sorted(numbers[:users]), "users keep their order"
    assert numbers[users:].tolist() == sorted(numbers[users:]), "and so do newcomers"


def test_users_come_first_and_everybody_keeps_the_samples_of_every_part() -> None:
    whole, apart = ready(0.0), ready(0.3)
    newcomers = apart.newcomer_data
    assert newcomers is not None
    assert apart._numbers is not None
    assert (apart.num_clients, newcomers.num_clients) == (7, 10)
    for client, before in enumerate(apart._numbers.tolist()):
        there, elsewhere = (apart, newcomers) if client < 7 else (newcomers, apart)
        assert parts_of(there, client) == parts_of(whole, before)
        if client < 7:
            assert parts_of(elsewhere, client) == [[], [], [], []], "a user has no rows among the newcomers"


def test_what_is_measured_of_users_has_no_sample_of_a_newcomer() -> None:
    data = ready(0.3)
    assert data.newcomer_data is not None
    of_newcomers = set(data.newcomer_data.everyone.test.joined.tolist())
    assert of_newcomers
    assert not of_newcomers & set(data.global_test.tolist())
    assert data.newcomer_data.global_test.tolist() == sorted(of_newcomers)
    assert data.sizes.tolist() == [len(rows) for rows in data.everyone.train]


def test_newcomers_are_drawn_by_the_seed() -> None:
    drawn = {tuple(order_of(10, 0.3, seed)[0][7:].tolist()) for seed in range(30)}
    assert len(drawn) > 10
    assert order_of(10, 0.3, 4)[0].tolist() == order_of(10, 0.3, 4)[0].tolist()


def test_without_newcomers_a_partition_is_what_it_was() -> None:
    assert ready(0.0).newcomer_data is None
    assert ready(0.0).describe().keys() == {"name", "seed", "num_clients", "num_classes", "hash", "clients"}


def test_the_hash_knows_who_is_held_back() -> None:
    assert len({ready(share).partition_hash for share in (0.0, 0.1, 0.2)}) == 3


def test_the_description_has_newcomers_and_the_numbers_from_before() -> None:
    described, whole = ready(0.3).describe(), ready(0.0).describe()
    assert (described["num_clients"], len(described["clients"]), len(described["newcomers"])) == (7, 7, 3)
    everybody = [*described["clients"], *described["newcomers"]]
    assert everybody == [whole["clients"][number] for number in described["numbers_before"]]


def test_names_of_clients_follow_their_new_numbers() -> None:
    rng = np.random.default_rng(0)
    owners = np.repeat([f"shop {k}" for k in range(10)], 5)
    data = TensorData(rng.normal(size=(50, 3)), rng.integers(2, size=50), owners, newcomers=0.3)
    data.setup()
    assert data._numbers is not None
    assert list(data.client_names) == [f"shop {k}" for k in data._numbers]


def test_the_store_is_shared_and_has_one_precision() -> None:
    data = ready(0.3)
    data.cast(torch.float64)
    assert data.newcomer_data is not None
    assert data.newcomer_data.store is data.store
    assert data.newcomer_data.store["x"].dtype == torch.float64


@pytest.mark.parametrize("newcomers", [-0.1, 1.0, 2.0, float("nan")])
def test_a_share_below_0_or_of_everybody_is_refused(newcomers: float) -> None:
    with pytest.raises(ConfigError, match="data.newcomers is .* set it to 0 or more and below 1"):
        Synthetic(newcomers=newcomers)


def test_clients_that_are_drawn_anew_cannot_be_held_back(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="newcomers is 0.2, but these data draw new clients in every round"):
        MNIST(str(tmp_path), fresh=Fresh(clients=5, samples=10), newcomers=0.2)
