"""Normalisation: pictures stay bytes in memory; a batch gets mean 0 and deviation 1 when it is gathered."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlit.errors import require


def normalisation(mean: Sequence[float], std: Sequence[float]) -> dict[str, Tensor]:
    """`scale` and `shift` (channels, 1, 1): byte * scale + shift = (byte / 255 - mean) / std."""
    require(
        len(mean) == len(std) and min(std, default=1.0) > 0,
        f"data.mean is {list(mean)} and data.std is {list(std)}. Give one number per channel in each, std above 0.",
    )
    centre, width = (torch.tensor(values, dtype=torch.float64).view(-1, 1, 1) for values in (mean, std))
    return {"scale": (1 / (255 * width)).float(), "shift": (-centre / width).float()}


def pixel_normalisation(pictures: np.ndarray[Any, np.dtype[np.uint8]]) -> dict[str, Tensor]:
    """`scale` and `shift` of every pixel: (byte - mean) / (deviation + 0.001), both over all pictures, in bytes.

    The pFedMe authors' code prepares MNIST so. A pixel that is the same in all pictures becomes 0.
    """
    mean = pictures.mean(axis=0, dtype=np.float64)
    squares = np.einsum("n...,n...->...", pictures, pictures, dtype=np.float64, casting="unsafe") / len(pictures)
    width = np.sqrt((squares - mean**2).clip(min=0)) + 0.001  # np.std would copy all pictures to float64
    return {"scale": torch.from_numpy(1 / width).float(), "shift": torch.from_numpy(-mean / width).float()}


def normalised(store: dict[str, Tensor], index: Tensor) -> Tensor:
    """x of these rows, as numbers in the model's dtype."""
    return scaled(store, store["x"].index_select(0, index))


def scaled(store: dict[str, Tensor], pictures: Tensor) -> Tensor:
    """Bytes (rows, channels, height, width) as numbers."""
    return pictures.to(store["scale"].dtype) * store["scale"] + store["shift"]
