"""Laws of pictures in folders: folders are labels, and every picture arrives in colour and in the size asked for."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedlit.data.files.folders import read_folders
from fedlit.errors import ConfigError
from tests.data.files import refused

DRAW = np.random.default_rng(0)


def draw(path: Path, *, mode: str = "RGB") -> Image.Image:
    """Write a picture of noise, 40 pixels wide and 30 high, and return it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(DRAW.integers(0, 256, (30, 40, 3), np.uint8)).convert(mode)
    picture.save(path)
    return picture


def test_folders_are_domains_and_classes_in_sorted_order(tmp_path: Path) -> None:
    for name in ("webcam/mug/1.png", "webcam/bike/1.png", "amazon/mug/2.png", "amazon/mug/1.png"):
        draw(tmp_path / name)
    pictures = read_folders(tmp_path, 8)
    assert (pictures.domains, pictures.classes) == (["amazon", "webcam"], ["bike", "mug"])
    assert (pictures.domain.tolist(), pictures.y.tolist()) == ([0, 0, 1, 1], [1, 1, 0, 1])
    assert (pictures.domain.dtype.name, pictures.y.dtype.name) == ("int64", "int64")


def test_a_class_has_the_same_number_in_a_domain_that_lacks_another(tmp_path: Path) -> None:
    for name in ("a/ant/1.png", "a/bee/1.png", "b/bee/1.png"):
        draw(tmp_path / name)
    assert read_folders(tmp_path, 8).y.tolist() == [0, 1, 1]


def test_pictures_lie_beside_the_labels_of_their_files(tmp_path: Path) -> None:
    """A picture of one colour stays so, whatever the order in which the threads finish."""
    for level in range(64):
        path = tmp_path / f"d{level % 4}" / f"c{level // 16}" / f"{level:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), (level, level, level)).save(path)
    pictures = read_folders(tmp_path, 4)
    levels = pictures.x[:, 0, 0, 0].astype(int)
    assert pictures.domain.tolist() == (levels % 4).tolist()
    assert pictures.y.tolist() == (levels // 16).tolist()
    assert sorted(levels.tolist()) == list(range(64))


@pytest.mark.parametrize("size", [1, 28, 64])
def test_a_picture_is_what_torchvisions_resize_makes_of_it(tmp_path: Path, size: int) -> None:
    from torchvision.transforms import Resize

    picture = draw(tmp_path / "d" / "c" / "1.png")
    expected = np.asarray(Resize([size, size])(picture)).transpose(2, 0, 1)
    np.testing.assert_array_equal(read_folders(tmp_path, size).x, expected[np.newaxis])


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "1", "LA"])
def test_a_picture_of_any_kind_becomes_colour(tmp_path: Path, mode: str) -> None:
    draw(tmp_path / "d" / "c" / "1.png", mode=mode)
    x = read_folders(tmp_path, 16).x
    assert (x.shape, x.dtype.name) == ((1, 3, 16, 16), "uint8")


@pytest.mark.parametrize("name", ["1.png", "1.jpg", "1.jpeg", "1.PNG", "1.JPG"])
def test_endings_are_known_in_small_and_capital_letters(tmp_path: Path, name: str) -> None:
    draw(tmp_path / "d" / "c" / name)
    assert len(read_folders(tmp_path, 8).x) == 1


@pytest.mark.parametrize(
    "name", ["d/c/notes.txt", "d/c/._1.png", "d/.cache/1.png", ".git/c/1.png", "readme.png", "d/1.png"]
)
def test_what_is_no_picture_of_a_class_is_left_alone(tmp_path: Path, name: str) -> None:
    draw(tmp_path / "d" / "c" / "1.png")
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(b"not a picture")
    assert len(read_folders(tmp_path, 8).x) == 1


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("ending", ["png", "jpg"])
def test_a_truncated_picture_is_refused_by_name(tmp_path: Path, kept: float, ending: str) -> None:
    for number in range(5):
        draw(tmp_path / "d" / "c" / f"{number}.{ending}")
    path = tmp_path / "d" / "c" / f"3.{ending}"
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    with refused(f"3.{ending} cannot be used"):
        read_folders(tmp_path, 8)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with refused("no_such does not exist", "<domain>/<class>"):
        read_folders(tmp_path / "no_such", 8)


def test_a_folder_without_pictures_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d" / "c").mkdir(parents=True)
    with refused(f"no pictures below {tmp_path}", ".png, .jpg, .jpeg"):
        read_folders(tmp_path, 8)


def test_a_domain_without_pictures_is_refused_by_name(tmp_path: Path) -> None:
    draw(tmp_path / "full" / "c" / "1.png")
    (tmp_path / "empty" / "c").mkdir(parents=True)
    with refused(f"no pictures in {tmp_path / 'empty'}", "or remove the folder"):
        read_folders(tmp_path, 8)


def test_a_size_below_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="data.size is 0"):
        read_folders(tmp_path, 0)
