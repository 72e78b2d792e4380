"""Laws of Synthetic(α, β): the papers' sizes, the recipe's distributions and labels, and what is refused."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import RandomState

import fedlit._torchvision  # noqa: F401  (before Lightning, whichever test file is run alone)
from fedlit.data import Synthetic
from fedlit.data.synthetic import Models, Recipe, draw_models, draw_shared, draw_sizes
from fedlit.errors import ConfigError

ROOT = Path(__file__).parents[2]


def ready(**options: Any) -> Synthetic:
    data = Synthetic(**options)
    data.setup()
    return data


def totals(data: Synthetic) -> list[int]:
    """All samples of each client, whatever its split."""
    everyone = data.everyone
    parts = zip(everyone.train, everyone.val, everyone.test, strict=True)
    return [sum(len(rows) for rows in part) for part in parts]


def recipe(**options: Any) -> Recipe:
    return Synthetic(**options).recipe


def many_models(**options: Any) -> Models:
    """Few features and classes, so that thousands of clients are quick."""
    return draw_models(recipe(num_clients=4000, num_features=20, num_classes=5, **options), RandomState(0))


@pytest.mark.parametrize(("clients", "total"), [(30, 8_678), (70, 26_834), (100, 31_870)])
def test_seed_one_gives_the_totals_of_fedbc(clients: int, total: int) -> None:
    assert sum(totals(ready(seed=1, num_clients=clients))) == total


def test_seed_one_gives_the_largest_client_of_fedbc() -> None:
    assert max(totals(ready(seed=1))) == 1_839


def test_five_times_the_sizes_of_seed_zero_gives_the_range_printed_in_pfedme() -> None:
    sizes = draw_sizes(recipe(num_clients=100, size_factor=5), RandomState(0))
    assert [sizes.min(), sizes.max(), sizes.sum()] == [250, 25_810, 205_795]


def test_the_data_of_pfedme_are_built_within_seconds() -> None:
    start = time.perf_counter()
    data = ready(num_clients=100, size_factor=5)
    assert len(data.store["y"]) == 205_795
    assert time.perf_counter() - start < 10  # about one second when the machine is idle


def test_the_recipe_does_not_change_the_sizes() -> None:
    plain = totals(ready(seed=3))
    assert totals(ready(seed=3, alpha=2.0, beta=0.0, iid=True, num_features=5)) == plain


def test_samples_are_float32_and_labels_int64() -> None:
    store = ready().store
    assert (store["x"].dtype, store["y"].dtype) == (torch.float32, torch.int64)


def test_a_sample_has_as_many_features_as_asked() -> None:
    assert ready(num_features=7).sample_shape == (7,)


def test_num_classes_is_the_option_even_if_a_class_never_occurs() -> None:
    assert ready(num_clients=1, num_classes=500).num_classes == 500


@pytest.mark.parametrize("iid", [False, True], ids=["per client", "shared"])
def test_every_label_is_the_best_class_of_its_client(iid: bool) -> None:
    data = ready(seed=2, iid=iid, test_fraction=0.0, val_fraction=0.0)
    random = RandomState(2)
    draw_sizes(data.recipe, random)
    models = (draw_shared if iid else draw_models)(data.recipe, random)
    owner = np.repeat(np.arange(30), totals(data))
    x, y = data.store["x"].double().numpy(), data.store["y"].numpy()
    scores = np.stack([x[row] @ models.w[i] + models.c[i] for row, i in enumerate(owner)])
    behind = scores.max(1) - scores[np.arange(len(y)), y]
    assert behind.max() < 1e-4  # x was rounded to float32 after its label was found


def test_inputs_scatter_around_the_clients_mean_with_variance_j_to_the_minus_1_2() -> None:
    data = ready(num_clients=1, size_min=100_000)
    expected = np.arange(1, 61) ** -1.2
    np.testing.assert_allclose(data.store["x"].numpy().var(0), expected, rtol=0.05)


def test_alpha_is_the_standard_deviation_of_the_models_means() -> None:
    means = many_models(alpha=2.0).w.mean((1, 2))
    assert means.std() == pytest.approx(np.sqrt(2.0**2 + 1 / 100), rel=0.05)


def test_weights_and_biases_of_a_client_share_their_mean() -> None:
    models = many_models(alpha=5.0)
    assert np.corrcoef(models.w.mean((1, 2)), models.c.mean(1))[0, 1] > 0.99


def test_beta_is_the_standard_deviation_of_the_inputs_means() -> None:
    means = many_models(beta=2.0).v.mean(1)
    assert means.std() == pytest.approx(np.sqrt(2.0**2 + 1 / 20), rel=0.05)


def test_as_variance_takes_the_square_root_of_alpha_and_beta() -> None:
    hashes = {ready(alpha=a, beta=b, as_variance=v).partition_hash for a, b, v in [(4, 9, True), (2, 3, False)]}
    assert len(hashes) == 1


def test_entries_of_a_model_have_unit_variance_around_its_mean() -> None:
    w = many_models(alpha=3.0).w
    assert (w - w.mean((1, 2), keepdims=True)).std() == pytest.approx(1, rel=0.02)


def test_iid_clients_share_one_model_and_one_mean() -> None:
    models = draw_shared(recipe(iid=True), RandomState(0))
    spread = [np.ptp(values, axis=0).max() for values in (models.w, models.c, models.v)]
    assert spread == [0, 0, 0]


def test_alpha_and_beta_have_no_effect_on_iid_data() -> None:
    plain, other = ready(iid=True), ready(iid=True, alpha=3.0, beta=4.0)
    assert plain.store["x"].equal(other.store["x"])


def test_another_seed_gives_another_hash() -> None:
    assert ready(seed=0).partition_hash != ready(seed=1).partition_hash


def test_the_global_random_state_is_not_read() -> None:
    np.random.seed(0)
    first = ready().partition_hash
    np.random.seed(1)
    assert ready().partition_hash == first


def test_the_global_random_state_is_not_changed() -> None:
    np.random.seed(123)
    before = np.random.get_state(legacy=False)
    ready()
    after = np.random.get_state(legacy=False)
    np.testing.assert_equal(after, before)


@pytest.mark.parametrize("salt", ["1", "2"])
def test_the_hash_is_the_same_in_another_process(salt: str) -> None:
    program = (
        "import fedlit._torchvision; from fedlit.data import Synthetic;"
        "data = Synthetic(seed=3); data.setup(); print(data.partition_hash)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env={"PYTHONHASHSEED": salt}, capture_output=True, text=True
    )
    assert answer.stdout.strip() == ready(seed=3).partition_hash, answer.stderr


@pytest.mark.parametrize(
    ("name", "value", "lowest"),
    [
        ("alpha", -0.1, 0),
        ("alpha", float("nan"), 0),
        ("beta", -1.0, 0),
        ("beta", float("inf"), 0),
        ("num_clients", 0, 1),
        ("num_features", 0, 1),
        ("num_classes", 1, 2),
        ("size_sigma", -1.0, 0),
        ("size_min", -1, 0),
        ("size_factor", 0, 1),
    ],
)
def test_an_option_out_of_range_is_refused_by_name_with_the_fix(name: str, value: float, lowest: int) -> None:
    with pytest.raises(ConfigError, match=rf"data\.{name} is {value}\. Set it to a number of {lowest} or more"):
        Synthetic(**{name: value})  # type: ignore[arg-type]  # one option of any type


def test_an_infinite_mean_size_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.size_mean is inf"):
        Synthetic(size_mean=float("inf"))


def test_more_samples_than_memory_are_refused_before_they_are_drawn() -> None:
    with pytest.raises(ConfigError, match=r"data\.size_mean 40.*Lower them"):
        ready(size_mean=40.0)
