"""Laws of Hugging Face's data sets: their columns arrive unchanged, or are refused with the column and the fix."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedlit import Dirichlet, FedAvg, FederatedTrainer, HuggingFaceData
from fedlit.errors import DataError, FedlitError

datasets = pytest.importorskip("datasets", reason="the package datasets (extra hf) is not installed")

ROWS = 24
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32")
COLUMNS: dict[str, Any] = {
    "size": X.tolist(),
    "kind": [k % 3 for k in range(ROWS)],
    "price": [k / 7 for k in range(ROWS)],
    "shop": [f"shop {k % 4}" for k in range(ROWS)],
    "words": [[k % 5, 1, 2, 3] for k in range(ROWS)],
    "ragged": [[1] * (1 + k % 3) for k in range(ROWS)],
}


def made(**more: Any) -> Any:
    return datasets.Dataset.from_dict(COLUMNS | more)


def ready(dataset: Any = None, **options: Any) -> HuggingFaceData:
    data = HuggingFaceData(
        made() if dataset is None else dataset, **{"x": "size", "y": "kind", "client": "shop", **options}
    )
    data.setup()
    return data


def all_rows(data: HuggingFaceData) -> tuple[torch.Tensor, torch.Tensor]:
    return data.rows(data.store, torch.arange(ROWS))


def test_columns_arrive_unchanged_and_owners_by_name() -> None:
    data = ready()
    x, y = all_rows(data)
    np.testing.assert_allclose(x.numpy(), X, rtol=1e-6)
    assert (y.tolist(), data.client_names) == (COLUMNS["kind"], [f"shop {k}" for k in range(4)])
    assert [sorted(np.concatenate([p.numpy() for p in parts])) for parts in owned(data)] == [
        list(range(k, ROWS, 4)) for k in range(4)
    ]


def owned(data: HuggingFaceData) -> list[tuple[torch.Tensor, ...]]:
    everyone = data.everyone
    return list(zip(everyone.train, everyone.val, everyone.test, strict=True))


def test_a_saved_folder_is_the_same_data_set(tmp_path: Path) -> None:
    made().save_to_disk(str(tmp_path / "saved"))
    assert ready(str(tmp_path / "saved")).partition_hash == ready().partition_hash


def test_splits_are_joined_in_their_order() -> None:
    parts = datasets.DatasetDict({"train": made().select(range(10)), "test": made().select(range(10, ROWS))})
    assert torch.equal(all_rows(ready(parts))[0], all_rows(ready())[0])


def test_numbers_are_the_targets_of_a_regression() -> None:
    _, y = all_rows(ready(y="price"))
    assert y.tolist() == pytest.approx(COLUMNS["price"])


def test_without_a_target_the_tokens_are_to_be_guessed_one_further_on() -> None:
    x, y = all_rows(ready(x="words", y=None))
    assert (x[7].tolist(), y[7].tolist()) == ([2, 1, 2], [1, 2, 3])


def test_a_recipe_hands_out_rows_in_the_place_of_owners() -> None:
    assert ready(client=None, partition=Dirichlet(num_clients=3, alpha=1.0)).num_clients == 3


def test_as_many_classes_as_a_class_label_names() -> None:
    named = made().cast_column("kind", datasets.ClassLabel(names=list("abcde")))
    assert ready(named).num_classes == 5


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3)])
def test_pictures_are_bytes_channels_first_and_normalised(mode: str, channels: int) -> None:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (ROWS, 4, 5, channels), np.uint8)
    images = [Image.fromarray(one.squeeze(-1) if channels == 1 else one, mode) for one in pixels]
    x, _ = all_rows(ready(made(face=images).cast_column("face", datasets.Image()), x="face"))
    np.testing.assert_allclose(x.numpy(), pixels.transpose(0, 3, 1, 2) / 127.5 - 1, atol=1e-6)


@pytest.mark.parametrize(
    ("x", "names"),
    [
        (["size", "words"], {"size": "size", "words": "words"}),
        ({"table": "size", "ids": "words"}, {"table": "size", "ids": "words"}),
    ],
)
def test_several_columns_are_the_arguments_of_the_net(x: Any, names: dict[str, str]) -> None:
    found, _ = all_rows(ready(x=x))
    assert list(found) == list(names)
    for argument, column in names.items():
        np.testing.assert_allclose(found[argument].numpy(), COLUMNS[column], rtol=1e-6)


def test_pictures_beside_numbers_are_normalised_and_the_numbers_are_not() -> None:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (ROWS, 4, 5), np.uint8)
    rows = made(face=[Image.fromarray(one, "L") for one in pixels]).cast_column("face", datasets.Image())
    x, _ = all_rows(ready(rows, x=["face", "size"]))
    np.testing.assert_allclose(x["face"].numpy(), pixels[:, None] / 127.5 - 1, atol=1e-6)
    np.testing.assert_allclose(x["size"].numpy(), X, rtol=1e-6)


def test_a_run_trains_is_described_and_resumed(tmp_path: Path) -> None:
    for rounds in (1, 2):
        trainer = FederatedTrainer(
            rounds=rounds, clients_per_round=2, run=tmp_path, resume=rounds > 1, enable_progress_bar=False
        )
        trainer.fit(FedAvg(nn.Linear(3, 3), lr=0.1), datamodule=ready())
    assert trainer.summary["rounds"] == 2
    other = ready(made(size=(X + 1).tolist()))
    trainer = FederatedTrainer(rounds=3, clients_per_round=2, run=tmp_path, resume=True, enable_progress_bar=False)
    with pytest.raises(FedlitError, match=r"other settings: data\.dataset\.x"):
        trainer.fit(FedAvg(nn.Linear(3, 3), lr=0.1), datamodule=other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"x": "sise"}, r"data\.x is 'sise'.*Did you mean 'size'.*It has size, kind"),
        ({"x": "shop"}, r"data\.x: the column 'shop' holds text.*tokenizer"),
        ({"y": "shop"}, r"data\.y: the column 'shop' holds text.*class_encode_column\('shop'\)"),
        ({"x": "ragged"}, r"'ragged' have different shapes, such as \(1,\) and \(3,\)"),
        ({"x": ["size", "sise"]}, r"data\.x is 'sise'.*Did you mean 'size'"),
        ({"x": ["size", "words"], "y": None}, r"data\.x names several columns.*data\.y must name"),
        ({"client": None}, r"Give data\.client.*or data\.partition"),
        (
            {"y": "price", "client": None, "partition": Dirichlet(num_clients=2)},
            r"by their labels, but y has no labels",
        ),
        ({"dataset": [1, 2]}, r"data\.dataset is a list, but it has to be a Dataset"),
        ({"dataset": "no/such/folder"}, r"data\.dataset is no/such/folder, which is not a folder that save_to_disk"),
    ],
)
def test_a_wrong_column_is_refused_with_the_fix(options: dict[str, Any], message: str) -> None:
    with pytest.raises(FedlitError, match=message):
        ready(**options)


def test_a_data_set_without_rows_is_refused() -> None:
    with pytest.raises(DataError, match="has no rows"):
        ready(made().select([]))
