"""Dense networks: softmax regression and multi-layer perceptrons."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from fedlit.errors import require
from fedlit.recorded import Recorded


class Softmax(Recorded, nn.Module):
    """Softmax regression: one linear layer, cross-entropy applied outside.

    Args:
        num_features: numbers of one sample (pictures are flattened).
        num_classes: classes.
    """

    def __init__(self, num_features: int = 60, num_classes: int = 10) -> None:
        super().__init__()
        self.linear = nn.Linear(num_features, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (rows, classes)."""
        logits: Tensor = self.linear(x.flatten(1))
        return logits


class MLP(Recorded, nn.Module):
    """Linear layers with ReLU between them.

    Args:
        num_features: numbers of one sample (pictures are flattened).
        hidden: widths of the hidden layers.
        num_classes: classes.
        dropout: probability with which a number of a hidden layer is set to zero in training. Above 0, an nn.Dropout
            stands after each hidden linear layer, before its ReLU (FedBC's code: 0.5 on MNIST).
    """

    def __init__(
        self,
        num_features: int = 784,
        hidden: Sequence[int] = (128,),
        num_classes: int = 10,
        *,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        require(len(hidden) > 0, "MLP.hidden is empty; name at least one width, or use Softmax.")
        require(0 <= dropout < 1, f"MLP.dropout is {dropout}; give a number from 0 up to, but not including, 1.")
        layers: list[nn.Module] = []
        for width_in, width_out in pairwise([num_features, *hidden]):
            drop = [nn.Dropout(dropout)] if dropout > 0 else []
            layers += [nn.Linear(width_in, width_out), *drop, nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(hidden[-1], num_classes))

    def forward(self, x: Tensor) -> Tensor:
        """Logits (rows, classes)."""
        logits: Tensor = self.layers(x.flatten(1))
        return logits
