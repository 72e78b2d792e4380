"""The LeNet-type network of the FedBC paper: two convolutions (6 and 16 filters of 5x5) and three linear layers."""

import torch.nn.functional as F
from torch import Tensor, nn

from fedlit.recorded import Recorded


class LeNet(Recorded, nn.Module):
    """LeNet for 32x32 pictures: 62,006 parameters with 3 channels and 10 classes.

    Args:
        channels: colour channels of a picture.
        num_classes: classes.
    """

    def __init__(self, channels: int = 3, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (rows, classes) of pictures (rows, channels, 32, 32)."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        x = F.relu(self.fc2(x))
        logits: Tensor = self.fc3(x)
        return logits
