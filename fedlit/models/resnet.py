"""Residual networks: ResNet-20 for CIFAR (He et al. 2016, section 4.2) and torchvision's ResNet-18.

Where the papers leave a choice: the zero channels of an option A shortcut follow the kept ones, as in FedBCD's code
(another order only renumbers channels); option B projections have a norm; weights start as PyTorch draws them.

GroupNorm (Wu, He 2018) has no statistics over a batch, and so no buffers that clients would have to share: the fast
engine can run such a net for many clients at once.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from fedlit.errors import require
from fedlit.recorded import Recorded

Shortcut = Literal["A", "B"]
Norm = Literal["batch", "group"]
Layer = Callable[[int], nn.Module]
"""Number of channels -> a norm layer."""

_WIDTHS = (16, *(16, 16, 16), *(32, 32, 32), *(64, 64, 64))
"""Channels after the first convolution and after each block."""


class ResNet20(Recorded, nn.Module):
    """ResNet-20: a convolution and three stages of three blocks with 16, 32 and 64 channels.

    With 3 channels and 10 classes it has 269,722 parameters; 270,410 with conv_bias, 272,474 with shortcut B.

    Args:
        channels: colour channels of a picture.
        num_classes: classes.
        shortcut: the path around a block that halves the picture: A, every second pixel and zeros for the new channels
            (no parameters); B, a 1x1 convolution and a norm.
        conv_bias: whether convolutions have biases, as in FedBCD's code.
        norm: BatchNorm, or GroupNorm, which depends on no other row of a batch.
        groups: of GroupNorm, in each layer.
    """

    def __init__(
        self,
        channels: int = 3,
        num_classes: int = 10,
        *,
        shortcut: Shortcut = "A",
        conv_bias: bool = False,
        norm: Norm = "batch",
        groups: int = 2,
    ) -> None:
        super().__init__()
        require(channels >= 1, f"ResNet20.channels is {channels}; give 1 or more.")
        require(num_classes >= 1, f"ResNet20.num_classes is {num_classes}; give 1 or more.")
        require(shortcut in ("A", "B"), f"ResNet20.shortcut is {shortcut!r}; give 'A' or 'B'.")
        self.conv = nn.Conv2d(channels, _WIDTHS[0], 3, padding=1, bias=conv_bias)
        layer = norm_layer("ResNet20", norm, groups, _WIDTHS[0])
        self.norm = layer(_WIDTHS[0])
        self.blocks = nn.Sequential(*(Block(*widths, shortcut, conv_bias, layer) for widths in pairwise(_WIDTHS)))
        self.fc = nn.Linear(_WIDTHS[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (rows, classes) of pictures (rows, channels, height, width)."""
        x = self.blocks(F.relu(self.norm(self.conv(x))))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


class Block(nn.Module):
    """relu(F(x) + shortcut(x)) with two 3x3 convolutions in F; halves the picture where it doubles the channels."""

    def __init__(self, width_in: int, width_out: int, shortcut: Shortcut, conv_bias: bool, norm: Layer) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width_out, 3, stride=width_out // width_in, padding=1, bias=conv_bias)
        self.norm1 = norm(width_out)
        self.conv2 = nn.Conv2d(width_out, width_out, 3, padding=1, bias=conv_bias)
        self.norm2 = norm(width_out)
        self.shortcut = _shortcut(width_in, width_out, shortcut, conv_bias, norm)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, width_out, height, width), the picture halved where the channels doubled."""
        residual: Tensor = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(residual + self.shortcut(x))


class SubsampleAndPad(nn.Module):
    """Option A: every second pixel in both directions, then channels of zeros.

    Args:
        num_zeros: channels that are added.
    """

    def __init__(self, num_zeros: int) -> None:
        super().__init__()
        self.num_zeros = num_zeros

    def forward(self, x: Tensor) -> Tensor:
        """(rows, width_in + num_zeros, height / 2, width / 2)."""
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.num_zeros))


class ResNet18(Recorded, nn.Module):
    """torchvision's ResNet-18 without pretrained weights, for colour pictures: 11,181,642 parameters with 10 classes.

    Args:
        num_classes: classes.
        norm: BatchNorm, or GroupNorm, which depends on no other row of a batch.
        groups: of GroupNorm, in each layer.
    """

    def __init__(self, num_classes: int = 10, *, norm: Norm = "batch", groups: int = 2) -> None:
        super().__init__()
        require(num_classes >= 1, f"ResNet18.num_classes is {num_classes}; give 1 or more.")
        self.resnet = _torchvisions(num_classes, norm_layer("ResNet18", norm, groups, 64))

    def reset_parameters(self) -> None:
        """Draw new weights by torchvision's own initialisation."""
        first, classes = self.resnet.bn1, self.resnet.fc.out_features
        norm = partial(nn.GroupNorm, first.num_groups) if isinstance(first, nn.GroupNorm) else nn.BatchNorm2d
        self.resnet.load_state_dict(_torchvisions(classes, norm).state_dict())

    def forward(self, x: Tensor) -> Tensor:
        """Logits (rows, classes) of pictures (rows, 3, height, width)."""
        logits: Tensor = self.resnet(x)
        return logits


def norm_layer(net: str, norm: Norm, groups: int, width: int) -> Layer:
    """The maker of norms for a net whose narrowest layer has `width` channels."""
    require(norm in ("batch", "group"), f"{net}.norm is {norm!r}; give 'batch' or 'group'.")
    require(
        groups >= 1 and width % groups == 0,
        f"{net}.groups is {groups}; give a number that divides {width}, the channels of its narrowest layer.",
    )
    return nn.BatchNorm2d if norm == "batch" else partial(nn.GroupNorm, groups)


def _torchvisions(num_classes: int, norm: Layer) -> Any:
    from torchvision.models import resnet18  # type: ignore[import-untyped]  # here: start-up time; it has no hints

    return resnet18(num_classes=num_classes, norm_layer=norm)


def _shortcut(width_in: int, width_out: int, shortcut: Shortcut, conv_bias: bool, norm: Layer) -> nn.Module:
    """The identity if the width stays, else the chosen option."""
    if width_in == width_out:
        return nn.Identity()
    if shortcut == "A":
        return SubsampleAndPad(width_out - width_in)
    return nn.Sequential(nn.Conv2d(width_in, width_out, 1, stride=2, bias=conv_bias), norm(width_out))
