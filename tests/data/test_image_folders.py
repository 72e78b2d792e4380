"""Laws of pictures in folders: domains as clients, bytes in memory, numbers in the batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedlit import ImageFolders, Softmax
from fedlit.errors import ConfigError
from tests.data.built import fit, has_disjoint_parts, rows_of, sizes
from tests.data.files import refused

COUNTS = {"art": 10, "photo": 20, "sketch": 7}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """37 pictures of one colour each; the level of a picture tells which it is. All but sketch have two classes."""
    folder = tmp_path_factory.mktemp("pictures")
    names = [(domain, number) for domain, count in COUNTS.items() for number in range(count)]
    for level, (domain, number) in enumerate(names):
        kind = "cat" if number % 2 or domain == "sketch" else "bird"
        path = folder / domain / kind / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (12, 9), (level, 2 * level, 255 - level)).save(path)
    return folder


def ready(root: Path, **options: Any) -> ImageFolders:
    data = ImageFolders(str(root), **({"size": 8} | options))
    data.setup()
    return data


def colours(data: ImageFolders, client: int) -> set[tuple[int, ...]]:
    """Red, green and blue of the pictures of a client."""
    return {tuple(picture[:, 0, 0].tolist()) for picture in data.store["x"][torch.from_numpy(rows_of(data, client))]}


def test_domains_are_clients_and_groups_in_sorted_order(root: Path) -> None:
    data = ready(root)
    assert data.groups == ["art", "photo", "sketch"]
    assert sizes(data) == {"art": (5, 3, 2), "photo": (11, 5, 4), "sketch": (3, 2, 2)}


def test_classes_have_names_and_the_same_number_in_every_domain(root: Path) -> None:
    data = ready(root)
    assert (data.class_names, data.num_classes) == (["bird", "cat"], 2)
    assert set(data.labels(data.store, torch.from_numpy(rows_of(data, 2))).tolist()) == {1}


def test_pictures_are_kept_as_bytes_in_the_size_asked_for(root: Path) -> None:
    data = ready(root, size=5)
    assert (data.store["x"].dtype, data.store["x"].shape) == (torch.uint8, (37, 3, 5, 5))
    assert data.sample_shape == (3, 5, 5)


def test_a_client_has_the_pictures_of_its_folder(root: Path) -> None:
    assert colours(ready(root), 0) == {(level, 2 * level, 255 - level) for level in range(10)}


def test_a_batch_is_normalised_channel_by_channel(root: Path) -> None:
    data = ready(root, mean=[0.1, 0.2, 0.3], std=[0.5, 0.4, 0.3])
    x, y = data.rows(data.store, torch.tensor([5, 30]))
    pictures = data.store["x"][[5, 30]].double() / 255
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in ([0.1, 0.2, 0.3], [0.5, 0.4, 0.3]))
    torch.testing.assert_close(x, ((pictures - mean) / std).float(), rtol=1e-5, atol=1e-5)
    assert y.equal(data.store["y"][[5, 30]])


def test_by_default_levels_go_from_minus_one_to_one(root: Path) -> None:
    data = ready(root)
    data.store["x"][0], data.store["x"][1] = 0, 255
    x, _ = data.rows(data.store, torch.tensor([0, 1]))
    torch.testing.assert_close(x[:, 0, 0, 0], torch.tensor([-1.0, 1.0]))


def test_some_domains_can_be_chosen_in_any_order(root: Path) -> None:
    some, every = ready(root, domains=["sketch", "art"]), ready(root)
    assert some.groups == ["sketch", "art"]
    assert len(some.store["x"]) == 17
    assert (colours(some, 0), colours(some, 1)) == (colours(every, 2), colours(every, 0))
    assert some.class_names == every.class_names


def test_a_domain_is_cut_alike_whichever_the_others(root: Path) -> None:
    every, some = ready(root), ready(root, domains=["photo"])
    first = 10  # art comes before photo
    assert (every.everyone.test[1] - first).equal(some.everyone.test[0])


def test_a_domain_without_one_of_the_classes_keeps_their_number(root: Path) -> None:
    assert ready(root, domains=["sketch"]).num_classes == 2


def test_no_sample_is_in_two_parts_and_none_is_lost(root: Path) -> None:
    data = ready(root)
    assert has_disjoint_parts(data)
    assert [len(rows_of(data, client)) for client in range(3)] == list(COUNTS.values())


def test_the_hash_is_that_of_another_build_and_not_of_another_seed(root: Path) -> None:
    first, again, other = (ready(root, seed=seed).partition_hash for seed in (0, 0, 1))
    assert first == again != other


def test_an_unknown_domain_is_refused_with_the_nearest(root: Path) -> None:
    with refused(r"data\.domains has 'fotos'", "Did you mean 'photo'", "art, photo, sketch"):
        ready(root, domains=["art", "fotos"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"domains": ["art", "art"]}, r"data\.domains is \['art', 'art'\]"),
        ({"domains": []}, r"data\.domains is \[\]"),
        ({"mean": [0.5]}, r"data\.mean is \[0\.5\]"),
        ({"std": [0.5, 0.5]}, r"data\.std is \[0\.5, 0\.5\]"),
        ({"std": [0.5, 0.5, 0.0]}, r"data\.std is"),
        ({"test_fraction": 1.0}, r"data\.test_fraction is 1\.0"),
    ],
    ids=["twice", "none", "one mean", "two deviations", "no deviation", "share"],
)
def test_options_that_make_no_sense_are_refused_by_name(root: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ImageFolders(str(root), **options)


def test_a_size_of_zero_is_refused(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.size is 0"):
        ready(root, size=0)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with refused("no_such does not exist"):
        ready(tmp_path / "no_such")


def test_a_round_can_be_trained(root: Path) -> None:
    trainer = fit(ImageFolders(str(root), size=8, limit=4), Softmax(3 * 8 * 8, 2))
    assert np.isfinite(float(trainer.callback_metrics["global/loss"]))
