"""A small transformer for text: characters in, the next character out, at the last position or at every one.

Blocks with normalisation first (pre-LN) and causal attention. Every projection is an nn.Linear, so that an adapter can
stand beside each of them.

Vaswani et al., Attention Is All You Need (2017); Radford et al., GPT-2 (2019), for the order within a block.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlit.errors import require
from fedlit.recorded import Recorded


class CausalBlock(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x)); a position sees itself and those before it.

    Attention is written out: torch has no rule to map its own operator over clients.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, steps, width)."""
        x = x + self.attend(self.norm1(x))
        hidden: Tensor = self.down(F.gelu(self.up(self.norm2(x))))
        return x + hidden

    def attend(self, x: Tensor) -> Tensor:
        """Attention of several heads, without weights for later positions."""
        query, key, value = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        scores = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(later, -torch.inf)
        mixed: Tensor = self.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
        return mixed


class CharTransformer(Recorded, nn.Module):
    """Embeddings of characters and positions, causal blocks, and a linear layer: 824,144 parameters by default.

    Args:
        num_classes: characters of the alphabet, both those that are read and the one that is predicted.
        width: length of the vector at a position.
        heads: attention heads of a block; they divide the width.
        blocks: how many blocks.
        length: the longest text.
        every_position: give logits after each character of a text, instead of after the last one.
    """

    def __init__(
        self,
        num_classes: int = 80,
        width: int = 128,
        heads: int = 4,
        blocks: int = 4,
        length: int = 80,
        *,
        every_position: bool = False,
    ) -> None:
        super().__init__()
        for name, value in (("num_classes", num_classes), ("blocks", blocks), ("length", length), ("heads", heads)):
            require(value >= 1, f"CharTransformer.{name} is {value}; give 1 or more.")
        require(
            width >= 1 and width % heads == 0,
            f"CharTransformer.width is {width}, but {heads} heads divide it. Give a multiple of {heads}.",
        )
        self.every_position = every_position
        self.embedding, self.places = nn.Embedding(num_classes, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(CausalBlock(width, heads) for _ in range(blocks)))
        self.norm, self.fc = nn.LayerNorm(width), nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (rows, classes), or (rows, steps, classes); texts are (rows, steps) whole numbers."""
        steps = torch.arange(x.shape[1], device=x.device)
        outputs: Tensor = self.blocks(self.embedding(x) + self.places(steps))
        seen = outputs if self.every_position else outputs[:, -1]
        logits: Tensor = self.fc(self.norm(seen))
        return logits
