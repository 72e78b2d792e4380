"""Laws of the digits: one client per origin, merged and cut as in Exp-α's table 7 or as in FedBN."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedlit import Digits, Softmax
from fedlit.data.digits import from_all, from_each_label
from fedlit.data.files.digits import read_digits
from fedlit.errors import ConfigError
from tests.data.built import fit, has_disjoint_parts, rows_of, sizes
from tests.data.files import refused
from tests.data.files.test_digits import needs_scipy, write_mats, write_one, write_synth
from tests.real_files import Real

DRAW = np.random.default_rng(0)
SMALL: dict[str, Any] = {"train_samples": 2, "val_samples": 1, "test_fraction": 0.2}
"""What five digits allow: one of them is tested, and one left over."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Five digits of each set but MNIST and SVHN."""
    write_one(tmp_path / "digits" / "usps.npz", DRAW.integers(0, 256, (5, 16, 16), np.uint8))
    write_one(tmp_path / "digits" / "mnistm.npz", DRAW.integers(0, 256, (5, 32, 32, 3), np.uint8))
    write_synth(tmp_path, DRAW.integers(0, 256, (5, 32, 32, 3), np.uint8))
    return tmp_path


def ready(root: Path, *domains: str, **options: Any) -> Digits:
    data = Digits(str(root), domains=domains, **options)
    data.setup()
    return data


def test_domains_are_clients_and_groups_in_the_order_asked_for(root: Path) -> None:
    data = ready(root, "usps", "synthdigits", "mnistm", **SMALL)
    assert data.groups == ["usps", "synthdigits", "mnistm"]
    assert set(sizes(data).values()) == {(2, 1, 1)}


@needs_scipy
def test_svhn_is_read_like_the_others(root: Path) -> None:
    write_mats(root, ("train_32x32.mat", "test_32x32.mat"), DRAW.integers(0, 256, (5, 32, 32, 3), np.uint8))
    assert sizes(ready(root, "svhn", "usps", **SMALL)) == {"svhn": (2, 1, 1), "usps": (2, 1, 1)}


def test_a_client_has_only_samples_of_its_domain(root: Path) -> None:
    data = ready(root, "usps", "mnistm", **SMALL, seed=4)
    usps, mnistm = read_digits(root, ["usps", "mnistm"]).values()
    for client, pictures in enumerate((usps, mnistm)):
        rows = rows_of(data, client)
        np.testing.assert_array_equal(data.store["x"][rows], pictures.x[rows - 5 * client])
        np.testing.assert_array_equal(data.store["y"][rows], pictures.y[rows - 5 * client])


def test_official_training_and_test_samples_are_merged(root: Path) -> None:
    tested = {int(ready(root, "usps", **SMALL, seed=seed).everyone.test[0]) for seed in range(30)}
    assert tested == {0, 1, 2, 3, 4}


def test_a_batch_is_normalised_by_one_half(root: Path) -> None:
    data = ready(root, "usps", "mnistm", **SMALL)
    x, y = data.rows(data.store, torch.tensor([9, 0]))
    expected = (data.store["x"][[9, 0]].double() / 255 - 0.5) / 0.5
    torch.testing.assert_close(x, expected.float(), rtol=1e-5, atol=1e-5)
    assert y.equal(data.store["y"][[9, 0]])
    assert (data.store["x"].dtype, data.sample_shape, data.num_classes) == (torch.uint8, (3, 28, 28), 10)


def test_a_domain_is_cut_alike_whichever_the_others(root: Path) -> None:
    alone, second = ready(root, "usps", **SMALL), ready(root, "mnistm", "usps", **SMALL)
    assert (rows_of(second, 1) - 5).tolist() == rows_of(alone, 0).tolist()
    assert (second.everyone.test[1] - 5).equal(alone.everyone.test[0])


def test_the_hash_is_that_of_another_build_and_not_of_another_seed(root: Path) -> None:
    first, again, other = (ready(root, "usps", "mnistm", **SMALL, seed=seed).partition_hash for seed in (0, 0, 1))
    assert first == again != other


@pytest.mark.parametrize("draw", [from_all, from_each_label])
@pytest.mark.parametrize("count", [0, 1, 20, 100])
def test_a_test_and_the_others_are_all_rows_once(draw: Any, count: int) -> None:
    rows, y = np.arange(50, 150), DRAW.integers(0, 10, 150)
    test, rest = draw(rows, y, count, np.random.default_rng(0))
    assert len(test) == count
    assert sorted([*test, *rest]) == rows.tolist()


def test_a_stratified_test_has_the_same_share_of_every_label() -> None:
    y = DRAW.choice(10, 1003, p=np.arange(1, 11) / 55)
    test, _ = from_each_label(np.arange(1003), y, 201, np.random.default_rng(0))
    shares = np.bincount(y, minlength=10) * 201 / 1003
    assert (np.abs(np.bincount(y[test], minlength=10) - shares) < 1).all()


def test_what_a_stratified_test_leaves_is_shuffled() -> None:
    y = np.repeat(np.arange(10), 10)
    _, rest = from_each_label(np.arange(100), y, 20, np.random.default_rng(0))
    assert len(set(y[rest[:8]])) > 1


def test_real_domains_have_the_sizes_of_table_7(real: Real) -> None:
    data = ready(real("digits", "digits"), "usps", "mnistm")
    assert sizes(data) == {"usps": (892, 595, 1860), "mnistm": (892, 595, 700)}  # of MNIST-M 3,500 are at hand
    assert has_disjoint_parts(data)


def test_real_mnist_has_the_sizes_of_table_7(real: Real) -> None:
    assert sizes(ready(real("mnist", "MNIST/raw"), "mnist")) == {"mnist": (892, 595, 14000)}


def test_real_domains_have_the_sizes_of_fedbn_and_its_stratified_test(real: Real) -> None:
    data = ready(real("digits", "digits"), "usps", "mnistm", protocol="fedbn")
    assert sizes(data) == {"usps": (743, 0, 1860), "mnistm": (743, 0, 700)}
    usps = data.store["y"][:9298]
    shares = torch.bincount(usps) * 1860 / 9298
    assert (torch.bincount(usps[data.everyone.test[0]]) - shares).abs().max() < 1


def test_sizes_of_a_protocol_can_be_changed(real: Real) -> None:
    data = ready(real("digits", "digits"), "usps", protocol="fedbn", train_samples=1000, val_samples=100)
    assert sizes(data) == {"usps": (1000, 100, 1860)}


def test_a_domain_that_is_too_small_is_refused_with_what_to_lower(root: Path) -> None:
    with refused(
        "digits 'usps' have 4 samples beside their 1", r"data\.train_samples \(892\)", "ask for 1487", "Lower"
    ):
        ready(root, "usps")


def test_an_unknown_domain_is_refused_with_the_nearest(root: Path) -> None:
    with refused("no digits 'mnist_m'", "Did you mean 'mnistm'"):
        ready(root, "mnist_m")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"domains": []}, r"data\.domains is \[\]"),
        ({"domains": ["usps", "usps"]}, r"data\.domains is \['usps', 'usps'\]"),
        ({"protocol": "fed_bn"}, r"data\.protocol is 'fed_bn'\. Did you mean 'fedbn'"),
        ({"train_samples": 0}, r"data\.train_samples is 0"),
        ({"val_samples": -1}, r"data\.val_samples is -1"),
        ({"test_fraction": 1.0}, r"data\.test_fraction is 1\.0"),
    ],
    ids=["none", "twice", "protocol", "train", "val", "share"],
)
def test_options_that_make_no_sense_are_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Digits(**options)


@pytest.mark.parametrize("option", [{"split": "tail"}, {"val_fraction": 0.1}], ids=str)
def test_what_the_protocol_fixes_is_no_option(option: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(option))):
        Digits(**option)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with refused("USPS is not complete", "usps.npz", str(tmp_path)):
        ready(tmp_path, "usps")


def test_a_round_can_be_trained(root: Path) -> None:
    trainer = fit(Digits(str(root), domains=["usps", "mnistm"], **SMALL), Softmax(3 * 28 * 28, 10))
    assert np.isfinite(float(trainer.callback_metrics["global/loss"]))
