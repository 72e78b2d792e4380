"""The network of the FedBC paper for Shakespeare: characters in, the next character out."""

from torch import Tensor, nn

from fedlit.errors import require
from fedlit.recorded import Recorded


class CharLSTM(Recorded, nn.Module):
    """Embedding, two layers of LSTM, and a linear layer on the last step: 819,920 parameters by default.

    PyTorch's LSTM has two bias vectors per layer; with one it would be 817,872.

    Args:
        num_classes: characters of the alphabet, both those that are read and the one that is predicted.
        embedding: length of the vector of a character.
        hidden: width of each LSTM layer.
    """

    def __init__(self, num_classes: int = 80, embedding: int = 8, hidden: int = 256) -> None:
        super().__init__()
        require(num_classes >= 1, f"CharLSTM.num_classes is {num_classes}; give 1 or more.")
        require(embedding >= 1, f"CharLSTM.embedding is {embedding}; give 1 or more.")
        require(hidden >= 1, f"CharLSTM.hidden is {hidden}; give 1 or more.")
        self.embedding = nn.Embedding(num_classes, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=2, batch_first=True)
        self.fc = nn.Linear(hidden, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (rows, classes) of the character after each text; texts are (rows, steps) whole numbers."""
        outputs: Tensor = self.lstm(self.embedding(x))[0]
        logits: Tensor = self.fc(outputs[:, -1])
        return logits
