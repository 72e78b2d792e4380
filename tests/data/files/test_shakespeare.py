"""Laws of the Shakespeare reader: every window of every role, as LEAF would cut it, and none of them stored."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedlit.data.files.shakespeare import ALPHABET, WINDOW, Texts, clean, read_shakespeare, windows
from tests.data.files import refused
from tests.real_files import Real

LONG = "Tis better, sir,\n  than nothing; & so on:\n\n" * 4
LINES = ["To be, or not to be:", "That is the question", "", "Whether 'tis nobler (in the mind)"]

Window = tuple[str, str]  # 80 characters and the next


def cut(text: str) -> list[Window]:
    """The definition: x = text[i:i+80], y = text[i+80] for every i."""
    return [(text[i : i + WINDOW], text[i + WINDOW]) for i in range(len(text) - WINDOW)]


def leaf_of_paper(text: str) -> list[Window]:
    """LEAF's first way: from the whole text of a role."""
    return cut(re.sub("   *", " ", text.replace("\n", " ")))


def leaf_by_line(text: str) -> list[Window]:
    """LEAF's later way: from each line after 80 spaces, its newline included."""
    return [window for line in text.splitlines(keepends=True) for window in cut(" " * WINDOW + line)]


def write(root: Path, content: Any, name: str = "roles.json") -> Path:
    (root / "shakespeare").mkdir(exist_ok=True)
    (root / "shakespeare" / name).write_text(json.dumps(content))
    return root


def write_roles(root: Path, roles: dict[str, str]) -> Path:
    return write(root, {"roles": roles, "plays": dict.fromkeys(roles, "A PLAY")})


def write_leaf(root: Path, users: dict[str, list[Window]], name: str = "all_data.json") -> Path:
    data = {user: {"x": [x for x, _ in cuts], "y": [y for _, y in cuts]} for user, cuts in users.items()}
    sizes = [len(cuts) for cuts in users.values()]
    return write(root, {"users": list(users), "num_samples": sizes, "user_data": data}, name)


def decode(symbols: np.ndarray) -> str:
    return "".join(ALPHABET[number] for number in symbols)


def windows_of(texts: Texts, role: int) -> list[Window]:
    x, y = windows(texts.symbols, texts.positions(role))
    return [(decode(seen), ALPHABET[following]) for seen, following in zip(x, y, strict=True)]


def test_the_alphabet_is_leafs_80_characters_in_ascending_order() -> None:
    assert len(ALPHABET) == 80
    assert sorted(set(ALPHABET)) == list(ALPHABET)


def test_the_windows_of_a_role_are_all_cuts_of_its_cleaned_text(tmp_path: Path) -> None:
    texts = read_shakespeare(write_roles(tmp_path, {"A": LONG, "B": "Short.\n", "C": LONG[::-1]}))
    assert [windows_of(texts, role) for role in range(3)] == [
        leaf_of_paper(LONG),
        [],
        leaf_of_paper(LONG[::-1]),
    ]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(alphabet="\n aB}", max_size=200), max_size=5))
def test_no_window_reaches_into_the_text_of_another_role(tmp_path: Path, said: list[str]) -> None:
    texts = read_shakespeare(write_roles(tmp_path, {f"R{i}": text for i, text in enumerate(said)}))
    assert [windows_of(texts, role) for role in range(len(said))] == [leaf_of_paper(text) for text in said]
    assert texts.sizes.tolist() == [len(leaf_of_paper(text)) for text in said]


@given(st.text(alphabet="\n aB}"))
def test_text_is_cleaned_as_in_fedprox(text: str) -> None:
    assert clean(text) == re.sub("   *", " ", text.replace("\n", " "))


@pytest.mark.parametrize(("length", "number"), [(0, 0), (79, 0), (80, 0), (81, 1), (82, 2)])
def test_a_role_of_n_characters_has_n_minus_80_windows(tmp_path: Path, length: int, number: int) -> None:
    texts = read_shakespeare(write_roles(tmp_path, {"A": "a" * length}))
    assert texts.sizes.tolist() == [number]
    assert len(texts.positions(0)) == number


def test_each_character_is_stored_once(tmp_path: Path) -> None:
    texts = read_shakespeare(write_roles(tmp_path, {"A": LONG, "B": LONG}))
    assert texts.symbols.dtype == np.uint8
    assert decode(texts.symbols) == clean(LONG) * 2
    assert texts.starts.tolist() == [0, len(clean(LONG))]
    assert texts.lengths.tolist() == [len(clean(LONG))] * 2


def test_roles_come_in_the_order_of_the_file_with_their_plays(tmp_path: Path) -> None:
    write(tmp_path, {"roles": {"Z": LONG, "A": "a"}, "plays": {"A": "KING LEAR", "Z": "HAMLET"}})
    texts = read_shakespeare(tmp_path)
    assert (texts.roles, texts.plays) == (["Z", "A"], ["HAMLET", "KING LEAR"])


@pytest.mark.parametrize("way", [leaf_of_paper, leaf_by_line])
def test_the_windows_of_leafs_files_arrive_as_they_are(tmp_path: Path, way: Any) -> None:
    said = {"A": LONG, "B": "\n".join(LINES) + "\n", "C": ""}
    texts = read_shakespeare(write_leaf(tmp_path, {user: way(text) for user, text in said.items()}))
    assert [windows_of(texts, role) for role in range(3)] == [way(text) for text in said.values()]
    assert texts.sizes.tolist() == [len(way(text)) for text in said.values()]


def test_shuffled_windows_of_leaf_arrive_in_their_shuffled_order(tmp_path: Path) -> None:
    shuffled = [leaf_of_paper(LONG)[i] for i in np.random.default_rng(0).permutation(len(leaf_of_paper(LONG)))]
    assert windows_of(read_shakespeare(write_leaf(tmp_path, {"A": shuffled})), 0) == shuffled


def test_overlapping_windows_of_leaf_are_joined_to_one_run(tmp_path: Path) -> None:
    texts = read_shakespeare(write_leaf(tmp_path, {"A": leaf_of_paper(LONG)}))
    assert decode(texts.symbols) == clean(LONG)
    assert texts.lengths.tolist() == [len(clean(LONG))]


@pytest.mark.parametrize("data", [{"raw": LONG}, {"x": [LONG]}, {"x": LONG.split("\n")}], ids=["raw", "whole", "lines"])
def test_raw_text_in_leafs_files_is_cleaned_and_cut(tmp_path: Path, data: dict[str, Any]) -> None:
    write(tmp_path, {"users": ["A"], "num_samples": [1], "user_data": {"A": data}}, "all_data.json")
    assert windows_of(read_shakespeare(tmp_path), 0) == leaf_of_paper(LONG)


def test_leafs_hierarchies_are_the_plays(tmp_path: Path) -> None:
    data = {"A": {"raw": LONG}}
    write(tmp_path, {"users": ["A"], "hierarchies": ["HAMLET"], "num_samples": [1], "user_data": data}, "all_data.json")
    assert read_shakespeare(tmp_path).plays == ["HAMLET"]


def test_several_files_of_leaf_are_one_set(tmp_path: Path) -> None:
    write_leaf(tmp_path, {"A": leaf_of_paper(LONG)}, "all_data_0.json")
    write_leaf(tmp_path, {"B": leaf_of_paper(LONG[5:])}, "all_data_1.json")
    texts = read_shakespeare(tmp_path)
    assert texts.roles == ["A", "B"]
    assert windows_of(texts, 1) == leaf_of_paper(LONG[5:])


def test_a_user_in_two_files_of_leaf_is_refused(tmp_path: Path) -> None:
    write_leaf(tmp_path, {"A": leaf_of_paper(LONG)}, "train.json")
    write_leaf(tmp_path, {"A": leaf_of_paper(LONG)}, "test.json")
    with refused("the role A 2 times", "one of LEAF's files"):
        read_shakespeare(tmp_path)


def test_roles_json_is_preferred_to_leafs_files(tmp_path: Path) -> None:
    write_leaf(write_roles(tmp_path, {"ours": LONG}), {"leafs": leaf_of_paper(LONG)})
    assert read_shakespeare(tmp_path).roles == ["ours"]


def test_a_missing_file_is_named_with_its_folder(tmp_path: Path) -> None:
    with refused("roles.json not found in", f"Put roles.json into {tmp_path / 'shakespeare'}", "LEAF's all_data.json"):
        read_shakespeare(tmp_path)


@pytest.mark.parametrize("character", ["é", "\t", "{", "\x00", "—"])
def test_a_character_outside_the_alphabet_is_refused_with_its_role(tmp_path: Path, character: str) -> None:
    with refused("roles.json", "KENT says", re.escape(repr(character)), "80 characters"):
        read_shakespeare(write_roles(tmp_path, {"LEAR": LONG, "KENT": LONG + character}))


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"roles": {"A": ',
        "[]",
        '{"roles": {}}',
        '{"roles": {"A": 3}, "plays": {"A": ""}}',
        '{"roles": {"A": ""}, "plays": {}}',
    ],
    ids=["empty", "truncated", "list", "no plays", "number", "play missing"],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / "roles.json").write_text(content)
    with refused("roles.json cannot be used"):
        read_shakespeare(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_samples": [3]}, "where num_samples says 3"),
        ({"user_data": {"A": {"x": ["a" * 80, "b" * 79], "y": ["c", "d"]}}}, "not 80 characters and the next one"),
        ({"user_data": {"A": {"x": ["a" * 80, "b" * 80], "y": ["c", "de"]}}}, "not 80 characters and the next one"),
        ({"user_data": {"A": {"x": ["a" * 80, "b" * 80], "y": ["c"]}}}, "2 x and 1 y"),
        ({"users": ["A", "B"]}, "ValueError"),
        ({"user_data": {}}, "KeyError: 'A'"),
    ],
    ids=["number", "short x", "long y", "x without y", "users", "data missing"],
)
def test_a_file_of_leaf_that_contradicts_itself_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    data = {"A": {"x": ["a" * 80, "b" * 80], "y": ["c", "d"]}}
    write(tmp_path, {"users": ["A"], "num_samples": [2], "user_data": data} | change, "all_data.json")
    with refused("all_data.json cannot be used", words):
        read_shakespeare(tmp_path)


def test_real_roles_give_the_counted_windows(real: Real) -> None:
    texts = read_shakespeare(real("shakespeare", "shakespeare"))
    assert (len(texts.roles), len(set(texts.plays))) == (1145, 36)
    assert int((texts.sizes > 0).sum()) == 1130
    assert int(texts.sizes.sum()) == 4_226_206
    assert [int((texts.lengths >= n).sum()) for n in (500, 1000, 2000, 5000, 10000)] == [793, 620, 442, 268, 133]


def test_a_real_role_is_cut_as_by_definition(real: Real) -> None:
    root = real("shakespeare", "shakespeare")
    texts = read_shakespeare(root)
    name = "THE_TRAGEDY_OF_KING_LEAR_KENT"
    said = json.loads((root / "shakespeare" / "roles.json").read_text())["roles"][name]
    assert windows_of(texts, texts.roles.index(name)) == leaf_of_paper(said)
