"""Laws of Synthetic(α, β): the public generator's samples, the papers' sizes, the recipe's distributions and labels,
and what is refused."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
import torch
from numpy.random import RandomState

from fedlit import Synthetic
from fedlit.data import synthetic
from fedlit.data.synthetic import Floats, Recipe, draw_samples, draw_sizes, own_samples
from fedlit.errors import ConfigError


class Models(NamedTuple):
    """What all clients' samples were drawn from: w (clients, features, classes), c (clients, classes), v (clients,
    features)."""

    w: Floats
    c: Floats
    v: Floats


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


def models_of(draw: Callable[[], object]) -> Models:
    """The models and means that `draw` hands to `draw_samples`; nothing that it returns tells α, for instance."""
    with patch.object(synthetic, "draw_samples", wraps=draw_samples) as spy:
        draw()
    return Models(*(np.stack(part) for part in zip(*(call.args[:3] for call in spy.call_args_list), strict=True)))


def many_models(**options: Any) -> Models:
    """Few features and classes and one sample each, so that thousands of clients are quick."""
    chosen = recipe(num_clients=2000, num_features=20, num_classes=5, **options)
    return models_of(lambda: list(own_samples(chosen, np.ones(2000, dtype=np.int64), RandomState(0))))


def public_generator(seed: int, clients: int, alpha: float, beta: float) -> list[tuple[Floats, list[int]]]:
    """(x, y) of each client: generate_synthetic of litian96/FedProx with iid=0, its random state seeded."""
    random = RandomState(seed)
    samples_per_user = random.lognormal(4, 2, clients).astype(int) + 50
    mean_w = random.normal(0, alpha, clients)
    mean_b = mean_w
    big_b = random.normal(0, beta, clients)
    mean_x = np.zeros((clients, 60))
    diagonal = np.zeros(60)
    for j in range(60):
        diagonal[j] = np.power((j + 1), -1.2)
    cov_x = np.diag(diagonal)
    for i in range(clients):
        mean_x[i] = random.normal(big_b[i], 1, 60)
    samples = []
    for i in range(clients):
        w = random.normal(mean_w[i], 1, (60, 10))
        b = random.normal(mean_b[i], 1, 10)
        xx = random.multivariate_normal(mean_x[i], cov_x, samples_per_user[i])
        samples.append((xx, [int(np.argmax(np.dot(row, w) + b)) for row in xx]))
    return samples


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (0.5, 0.5), (1.0, 2.0)])
def test_every_client_has_the_samples_of_the_public_generator(alpha: float, beta: float) -> None:
    data = ready(seed=1, num_clients=5, alpha=alpha, beta=beta)
    everyone = data.everyone
    parts = zip(everyone.train, everyone.val, everyone.test, strict=True)
    for part, (x, y) in zip(parts, public_generator(1, 5, alpha, beta), strict=True):
        rows = torch.cat(part).sort().values
        np.testing.assert_allclose(data.store["x"][rows].numpy(), x, rtol=1e-6, atol=1e-6)
        assert data.store["y"][rows].tolist() == y


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
    store = ready(num_clients=5).store
    assert (store["x"].dtype, store["y"].dtype) == (torch.float32, torch.int64)


def test_a_sample_has_as_many_features_as_asked() -> None:
    assert ready(num_clients=5, num_features=7).sample_shape == (7,)


def test_num_classes_is_the_option_even_if_a_class_never_occurs() -> None:
    assert ready(num_clients=1, num_classes=500).num_classes == 500


@pytest.mark.parametrize("iid", [False, True], ids=["per client", "shared"])
def test_every_label_is_the_best_class_of_its_client(iid: bool) -> None:
    data = Synthetic(seed=2, iid=iid)
    models = models_of(data.setup)
    owner = np.repeat(np.arange(30), totals(data))
    x, y = data.store["x"].double().numpy(), data.store["y"].numpy()
    scores = np.stack([x[row] @ models.w[i] + models.c[i] for row, i in enumerate(owner)])
    behind = scores.max(1) - scores[np.arange(len(y)), y]
    assert behind.max() < 1e-4  # x was rounded to float32 after its label was found


def test_inputs_scatter_around_the_clients_mean_with_variance_j_to_the_minus_1_2() -> None:
    data = ready(num_clients=1, size_min=20_000)
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


def test_inputs_entries_have_unit_variance_around_their_mean() -> None:
    v = many_models(beta=3.0).v
    assert (v - v.mean(1, keepdims=True)).std() == pytest.approx(np.sqrt(1 - 1 / 20), rel=0.02)


def test_as_variance_takes_the_square_root_of_alpha_and_beta() -> None:
    as_variances, as_deviations = many_models(alpha=4, beta=9, as_variance=True), many_models(alpha=2, beta=3)
    np.testing.assert_equal(as_variances, as_deviations)


def test_labels_do_not_depend_on_alpha_which_adds_the_same_to_every_class() -> None:
    assert ready(num_clients=5, alpha=0.0).store["y"].equal(ready(num_clients=5, alpha=3.0).store["y"])


def test_entries_of_a_model_have_unit_variance_around_its_mean() -> None:
    w = many_models(alpha=3.0).w
    assert (w - w.mean((1, 2), keepdims=True)).std() == pytest.approx(1, rel=0.02)


def test_iid_clients_share_one_model_and_one_mean() -> None:
    models = models_of(Synthetic(iid=True, num_clients=5).setup)
    assert [np.ptp(values, axis=0).max() for values in models] == [0, 0, 0]


def test_inputs_of_iid_clients_are_centred_at_zero() -> None:
    assert not models_of(Synthetic(iid=True, num_clients=5).setup).v.any()


def test_entries_of_the_iid_model_are_standard_normal() -> None:
    w = models_of(Synthetic(iid=True, num_clients=1, num_features=1000).setup).w
    assert [w.mean(), w.std()] == pytest.approx([0, 1], abs=0.03)


def test_alpha_and_beta_have_no_effect_on_iid_data() -> None:
    plain, other = (ready(num_clients=5, iid=True, alpha=a, beta=b).store for a, b in [(0.5, 0.5), (3.0, 4.0)])
    assert [plain[name].equal(other[name]) for name in ("x", "y")] == [True, True]


def test_another_seed_gives_another_hash() -> None:
    assert ready(num_clients=5, seed=0).partition_hash != ready(num_clients=5, seed=1).partition_hash


def test_the_global_random_state_is_not_read() -> None:
    np.random.seed(0)
    first = ready(num_clients=5).partition_hash
    np.random.seed(1)
    assert ready(num_clients=5).partition_hash == first


def test_the_global_random_state_is_not_changed() -> None:
    np.random.seed(123)
    before = np.random.get_state(legacy=False)
    ready(num_clients=5)
    after = np.random.get_state(legacy=False)
    np.testing.assert_equal(after, before)


def test_the_hash_is_the_same_in_every_process() -> None:
    assert ready(seed=3).partition_hash == "af43a2c8e22c9cea"  # from another process, with another PYTHONHASHSEED


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
