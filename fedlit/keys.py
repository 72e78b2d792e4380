"""(seed, round, client, purpose) -> generator: the only way in which fedlit draws random numbers.

Nothing is consumed from a shared stream, so the order in which clients are visited, the engine, and
the number of lanes, workers or processes change no draw. Philox is counter-based: its key and the
upper words of its counter address the stream directly, without the hashing of a seed sequence
(which alone would cost a tenth of a small round).
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np

GeneratorOf = Callable[[int], np.random.Generator]
"""k -> a generator of the cohort's k-th client alone, the same whoever else takes part and in which order."""


class Purpose(IntEnum):
    """What a stream is for. The numbers are part of every result: never change or reuse one."""

    COHORT = 1
    BATCHES = 2
    DROPOUT = 3
    WORK = 4
    DATA = 5
    SPLIT = 6
    EVALUATE = 7
    CORRUPT = 8


def generator(seed: int, purpose: Purpose, *, round: int = 0, client: int = 0, index: int = 0) -> np.random.Generator:
    """A generator of its own for (seed, round, client, purpose, index), wherever and whenever it is asked for."""
    return Stream().at(seed, purpose, round=round, client=client, index=index)


class Stream:
    """One generator that is moved from key to key: 3 instead of 16 microseconds each, for draws in a round.

    It gives what `generator` gives for the same key. Only the last answer of `at` is valid, and in one thread.
    """

    def __init__(self) -> None:
        self._philox = np.random.Philox(key=0)
        self._state: Any = self._philox.state
        self._generator = np.random.Generator(self._philox)

    def at(
        self, seed: int, purpose: Purpose, *, round: int = 0, client: int = 0, index: int = 0
    ) -> np.random.Generator:
        """The generator, at the beginning of the stream with this key."""
        self._state["state"]["key"][:] = (seed, (round << 32) | client)
        self._state["state"]["counter"][:] = (0, 0, index, purpose)
        self._philox.state = self._state  # also empties the buffer: the saved state's is
        return self._generator


def torch_seed(seed: int, purpose: Purpose, *, round: int = 0, client: int = 0) -> int:
    """A seed for torch's own generator, for layers such as nn.Dropout that draw by themselves."""
    return int(generator(seed, purpose, round=round, client=client).integers(2**63))
