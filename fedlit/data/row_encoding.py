"""RowCode: row numbers that also encode a label and a crop of the picture.

Engines see only row numbers. So what differs from client to client (a wrong label) or from batch to batch (an
augmentation) is encoded in the number, and the gather function decodes it:

    number = picture + pictures * (carried + (classes + 1) * view)

`carried` is 0 for the picture's own label and 1 + label for another; `view` is 0 for the picture as it is.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedlit.data.partition.base import RowNumbers

Augmentation = Literal["none", "crop", "crop_flip"]

PAD = 4
"""Black pixels on each side before the random crop."""
_SHIFTS = 2 * PAD + 1


@dataclass(frozen=True)
class RowCode:
    """The encoding for a set with this number of pictures and classes."""

    pictures: int
    classes: int

    @property
    def limit(self) -> int:
        """The number of row numbers: all are below it."""
        return self.pictures * (self.classes + 1) * 2 * _SHIFTS**2

    def relabelled(self, pictures: RowNumbers, labels: RowNumbers) -> RowNumbers:
        """Row numbers of pictures with other labels."""
        return pictures + self.pictures * (1 + labels)

    def varied(self, rows: RowNumbers, generator: np.random.Generator, *, flip: bool) -> RowNumbers:
        """The same samples, each with a drawn view: shifted, and with `flip` half of them mirrored."""
        views = 2 * generator.integers(_SHIFTS**2, size=rows.shape)
        if flip:
            views += generator.integers(2, size=rows.shape)
        return rows + self.pictures * (self.classes + 1) * views

    def picture(self, rows: Tensor) -> Tensor:
        """The pictures of row numbers."""
        return rows % self.pictures

    def label(self, rows: Tensor, of_pictures: Tensor) -> Tensor:
        """The labels of row numbers; `of_pictures` are the labels that the data give their pictures."""
        carried = rows // self.pictures % (self.classes + 1)
        return torch.where(carried > 0, carried - 1, of_pictures)

    def view(self, rows: Tensor) -> Tensor:
        """The views of row numbers."""
        return rows // (self.pictures * (self.classes + 1))


def viewed(x: Tensor, view: Tensor) -> Tensor:
    """Pictures (rows, channels, height, width) in their views: padded with black, cropped to their size, mirrored."""
    height, width = x.shape[-2:]
    down, right = (_shift(view // divisor) for divisor in (2 * _SHIFTS, 2))
    across = torch.arange(width, device=view.device)
    mirrored = torch.where((view % 2 == 1)[:, None], width - 1 - across, across)
    lines, columns = torch.arange(height, device=view.device) + down[:, None], mirrored + right[:, None]
    inside = _inside(lines, height)[:, :, None] & _inside(columns, width)[:, None, :]
    source = lines.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
    index = source.flatten(1)[:, None, :].expand(-1, x.shape[1], -1)
    return x.flatten(2).gather(2, index).view_as(x) * inside[:, None]


def _shift(code: Tensor) -> Tensor:
    """0, 1, 2 ... -> 0, 1, ..., PAD, -PAD, ..., -1: code 0 leaves a picture where it is."""
    return (code % _SHIFTS + PAD) % _SHIFTS - PAD


def _inside(index: Tensor, size: int) -> Tensor:
    return (index >= 0) & (index < size)
