"""The network of the FedBN paper for digits: three convolutions, three linear layers, BatchNorm after all but one."""

import torch.nn.functional as F
from torch import Tensor, nn

from fedlit.errors import require
from fedlit.recorded import Recorded


class DigitNet(Recorded, nn.Module):
    """FedBN's digit network for 28x28 pictures: 14,219,210 parameters with 3 channels and 10 classes.

    5,632 of them are the weights and biases of BatchNorm.

    Args:
        channels: colour channels of a picture.
        num_classes: classes.
    """

    def __init__(self, channels: int = 3, num_classes: int = 10) -> None:
        super().__init__()
        require(channels >= 1, f"DigitNet.channels is {channels}; give 1 or more.")
        require(num_classes >= 1, f"DigitNet.num_classes is {num_classes}; give 1 or more.")
        self.conv1 = nn.Conv2d(channels, 64, 5, padding=2)
        self.norm1 = nn.BatchNorm2d(64)
        self.conv2 = nn.Conv2d(64, 64, 5, padding=2)
        self.norm2 = nn.BatchNorm2d(64)
        self.conv3 = nn.Conv2d(64, 128, 5, padding=2)
        self.norm3 = nn.BatchNorm2d(128)
        self.fc1 = nn.Linear(128 * 7 * 7, 2048)
        self.norm4 = nn.BatchNorm1d(2048)
        self.fc2 = nn.Linear(2048, 512)
        self.norm5 = nn.BatchNorm1d(512)
        self.fc3 = nn.Linear(512, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (rows, classes) of pictures (rows, channels, 28, 28)."""
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        x = F.relu(self.norm3(self.conv3(x)))
        x = F.relu(self.norm4(self.fc1(x.flatten(1))))
        x = F.relu(self.norm5(self.fc2(x)))
        logits: Tensor = self.fc3(x)
        return logits
