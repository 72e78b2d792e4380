"""Laws of Shakespeare: clients are roles, samples are the windows of their texts, and no window is stored."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedlit import CharLSTM, Shakespeare
from fedlit.data.files.shakespeare import ALPHABET, WINDOW, clean
from fedlit.errors import ConfigError, DataError
from tests.data.built import fit, has_disjoint_parts, rows_of
from tests.data.files import refused
from tests.data.files.test_shakespeare import Window, cut, decode, leaf_of_paper, write, write_leaf
from tests.real_files import Real

DRAW = np.random.default_rng(0)
TEXTS = {
    f"ROLE {name}": "Ay,\n  sir: " + "".join(DRAW.choice(list("aeiouTHE.,"), 80 + 40 * k))
    for k, name in enumerate("FCADBE")
}
PLAYS = {name: f"PLAY {k % 2}" for k, name in enumerate(TEXTS)}


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Six roles with 9 to 209 windows, in another order than that of their names."""
    return str(write(tmp_path, {"roles": TEXTS, "plays": PLAYS}))


def ready(root: str | Path, **options: Any) -> Shakespeare:
    data = Shakespeare(str(root), **({"num_clients": None, "min_samples": 1} | options))
    data.setup()
    return data


def windows_of(data: Shakespeare, rows: np.ndarray) -> list[Window]:
    """What a network gets for these rows, as text."""
    x, y = data.rows(data.store, torch.from_numpy(rows))
    return [(decode(seen), ALPHABET[following]) for seen, following in zip(x.numpy(), y.tolist(), strict=True)]


def test_the_samples_of_a_client_are_all_cuts_of_what_its_role_says(root: str) -> None:
    data = ready(root)
    expected = [leaf_of_paper(TEXTS[name]) for name in data.client_names]
    assert [windows_of(data, rows_of(data, client)) for client in range(data.num_clients)] == expected


def test_samples_are_numbers_of_characters_for_an_embedding(root: str) -> None:
    data = ready(root)
    x, y = data.rows(data.store, torch.tensor([3, 0, 3]))
    assert (x.shape, x.dtype, y.shape, y.dtype) == ((3, WINDOW), torch.int64, (3,), torch.int64)
    assert (data.sample_shape, data.num_classes) == ((WINDOW,), 80)


def test_labels_are_those_of_the_samples(root: str) -> None:
    data = ready(root)
    index = torch.from_numpy(rows_of(data, 2))
    assert data.labels(data.store, index).equal(data.rows(data.store, index)[1])


def test_each_character_is_stored_once_and_no_window(root: str) -> None:
    store = ready(root).store
    assert list(store) == ["x"]
    assert (store["x"].dtype, decode(store["x"].numpy())) == (torch.uint8, "".join(map(clean, TEXTS.values())))


def test_the_last_row_number_is_the_last_window_that_fits(root: str) -> None:
    data = ready(root)
    last = data.count_rows(data.store) - 1
    text = decode(data.store["x"].numpy())
    assert windows_of(data, np.array([last])) == cut(text)[-1:]


def test_every_position_has_the_next_character_as_its_target(root: str) -> None:
    data, last = ready(root, every_position=True), ready(root)
    index = torch.from_numpy(rows_of(data, 1))
    (x, y), (same, following) = data.rows(data.store, index), last.rows(last.store, index)
    assert x.equal(same)
    assert y[:, -1].equal(following)
    assert y[:, :-1].equal(x[:, 1:])
    assert data.partition_hash == last.partition_hash


def test_two_halves_are_all_roles_and_share_none(root: str) -> None:
    first, second = (ready(root, half=half).client_names for half in ("first", "second"))
    assert sorted(first + second) == sorted(TEXTS)
    assert (len(first), len(second)) == (3, 3)
    assert ready(root, half="first", seed=1).client_names != first


def test_a_half_that_has_too_few_roles_or_does_not_exist_is_refused(root: str) -> None:
    with pytest.raises(DataError, match=r"data.num_clients is 4, but 3 .* and are in the first half\. Lower"):
        ready(root, half="first", num_clients=4)
    with pytest.raises(ConfigError, match="data.half is 'third'. Give first or second, or leave it out."):
        ready(root, half="third")


def test_rows_is_one_program_without_branches_for_one_client_and_for_many(root: str) -> None:
    data = ready(root)
    index = torch.tensor([[0, 7], [5, 5]])
    x, y = torch.vmap(lambda own: data.rows(data.store, own))(index)
    program = torch.compile(data.rows, fullgraph=True, backend="eager")
    flat_x, flat_y = program(data.store, index.flatten())
    assert x.flatten(0, 1).equal(flat_x)
    assert y.flatten().equal(flat_y)


def test_clients_are_roles_in_the_order_of_their_names_and_grouped_by_play(root: str) -> None:
    data = ready(root)
    assert data.client_names == sorted(TEXTS)
    assert data.groups == [PLAYS[name] for name in sorted(TEXTS)]


def test_roles_with_too_few_samples_are_no_clients(root: str) -> None:
    enough = [name for name, text in TEXTS.items() if len(leaf_of_paper(text)) >= 60]
    assert ready(root, min_samples=60).client_names == sorted(enough)
    assert 0 < len(enough) < len(TEXTS)


def test_roles_are_drawn_by_the_seed(root: str) -> None:
    drawn = {tuple(ready(root, num_clients=2, seed=seed).client_names) for seed in range(20)}
    assert {len(names) for names in drawn} == {2}
    assert len(drawn) > 5
    assert ready(root, num_clients=2, seed=3).client_names == ready(root, num_clients=2, seed=3).client_names


def test_the_hash_is_that_of_another_build_and_not_of_another_seed(root: str) -> None:
    options = {"num_clients": 3, "max_samples_per_client": 10, "min_samples": 20}
    first, again, other = (ready(root, **options, seed=seed).partition_hash for seed in (0, 0, 1))
    assert first == again != other


def test_no_sample_is_in_two_parts(root: str) -> None:
    assert has_disjoint_parts(ready(root))


def test_a_long_role_is_cut_down_to_windows_drawn_by_the_seed(root: str) -> None:
    whole, some, other = (
        ready(root, **options)
        for options in ({}, {"max_samples_per_client": 30}, {"max_samples_per_client": 30, "seed": 1})
    )
    for client in range(whole.num_clients):
        rows = rows_of(whole, client)
        assert len(rows_of(some, client)) == min(len(rows), 30)
        assert set(rows_of(some, client)) <= set(rows)
    assert rows_of(some, 4).tolist() != rows_of(other, 4).tolist()
    assert rows_of(some, 4).tolist() != rows_of(whole, 4)[:30].tolist()


def test_the_windows_drawn_of_a_role_do_not_depend_on_the_other_roles(root: str) -> None:
    every, few = (ready(root, max_samples_per_client=30, num_clients=number) for number in (None, 3))
    for client, name in enumerate(few.client_names):
        assert rows_of(few, client).tolist() == rows_of(every, every.client_names.index(name)).tolist()


@pytest.mark.parametrize("most", [None, 30])
def test_tail_split_tests_on_the_end_of_what_a_role_says(root: str, most: int | None) -> None:
    everyone = ready(root, split="tail", max_samples_per_client=most).everyone
    for train, val, test in zip(everyone.train, everyone.val, everyone.test, strict=True):
        assert len(test) == 0 or test.min() > torch.cat([train, val]).max()
    everyone = ready(root, split="ordered", max_samples_per_client=most).everyone
    for train, val, test in zip(everyone.train, everyone.val, everyone.test, strict=True):
        assert len(test) == 0 or test.min() > torch.cat([train, val]).max()
        assert len(val) == 0 or val.min() > train.max()


def test_leafs_own_files_are_read_too(tmp_path: Path) -> None:
    users = {name: leaf_of_paper(text) for name, text in TEXTS.items()}
    data = ready(write_leaf(tmp_path, users))
    assert (data.client_names, set(data.groups)) == (sorted(TEXTS), {""})
    assert windows_of(data, rows_of(data, 1)) == users[data.client_names[1]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_clients": 5, "min_samples": 60}, r"data\.num_clients is 5, but 4 of the 6 roles"),
        ({"num_clients": 1, "min_samples": 500}, r"data\.num_clients is 1, but 0 of the 6 roles"),
        ({"min_samples": 500}, r"data\.num_clients is null \(all\), but 0 of the 6 roles"),
    ],
    ids=["too many", "nobody", "all of nobody"],
)
def test_more_clients_than_roles_are_refused_with_what_to_lower(root: str, options: dict[str, Any], words: str) -> None:
    with refused(words, "samples or more", r"Lower data\.num_clients or data\.min_samples"):
        ready(root, **options)


@pytest.mark.parametrize("name", ["num_clients", "min_samples", "max_samples_per_client"])
def test_numbers_below_one_are_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"data\.{name} is 0\. Set it to 1 or more"):
        Shakespeare(**{name: 0})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with refused("Shakespeare is not complete: roles.json not found", f"Put roles.json into {tmp_path}"):
        ready(tmp_path)


def test_without_a_root_the_files_are_those_of_the_environment(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLIT_DATA", root)
    data = Shakespeare(num_clients=6, min_samples=1)
    data.setup()
    assert data.client_names == sorted(TEXTS)


def test_a_round_can_be_trained(root: str) -> None:
    data = Shakespeare(root, num_clients=3, min_samples=20, limit=20)
    trainer = fit(data, CharLSTM(hidden=16))
    assert np.isfinite(float(trainer.callback_metrics["global/loss"]))


def test_real_roles_make_the_clients_of_fedbc(real: Real) -> None:
    root = real("shakespeare", "shakespeare")
    data = Shakespeare(str(root))
    data.setup()
    assert (data.num_clients, len(set(data.client_names)), data.num_classes) == (138, 138, 80)
    assert min(len(rows_of(data, client)) for client in range(138)) >= 20
    assert ready(root, min_samples=20).num_clients == 1109


def test_a_real_role_has_the_windows_of_its_text(real: Real) -> None:
    root = real("shakespeare", "shakespeare")
    data = Shakespeare(str(root), num_clients=5, seed=1)
    data.setup()
    texts = json.loads((root / "shakespeare" / "roles.json").read_text())["roles"]
    for client, name in enumerate(data.client_names):
        assert windows_of(data, rows_of(data, client)) == leaf_of_paper(texts[name])
