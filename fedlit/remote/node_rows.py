"""NodeRows: what a client keeps between rounds, in files on its node. A kill at any moment loses nothing.

A file is named by the round of the run that wrote it, and the server's messages say the round whose rows count. So a
round that the server undoes does no harm: the next message names the rows before it. Three files are kept: the newest,
the one on which it is based, and the one before, for a server that continues from its checkpoint before the last.
"""

import hashlib
from pathlib import Path

from torch import Tensor

from fedlit.client.messages import pack, unpack
from fedlit.client.row_layout import bytes_as_tensor
from fedlit.errors import MessageError
from fedlit.files import remove, write_bytes
from fedlit.params import Params

_DIGEST = 32


class NodeRows:
    """The rows of one client in one run.

    Args:
        folder: of this run on this node; it is made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def rounds(self) -> list[int]:
        """Rounds whose rows are here, ascending."""
        return sorted(int(path.stem) for path in self.folder.glob("*.rows"))

    def read(self, round: int | None) -> Params:
        """Stacked, one row each: what the client kept after its training in this round; nothing before its first."""
        if round is None:
            return {}
        path = self.path(round)
        if not path.exists():
            kept = ", ".join(map(str, self.rounds)) or "none"
            raise MessageError(
                f"has no rows of round {round} in {self.folder} (rounds there: {kept}). Put the folder's files back, "
                "or start the run anew"
            )
        content = path.read_bytes()
        if hashlib.sha256(content[_DIGEST:]).digest() != content[:_DIGEST]:
            raise MessageError(f"has damaged rows: {path}. Put the file back from a copy, or start the run anew")
        rows: dict[str, Tensor] = unpack(bytes_as_tensor(content[_DIGEST:]))
        return rows

    def write(self, round: int, rows: Params, base: int | None) -> None:
        """Keep the rows of a round that began with those of `base`; the file is there as a whole, or not at all."""
        content = pack(rows).numpy().tobytes()
        write_bytes(self.path(round), hashlib.sha256(content).digest() + content)
        before = max((kept for kept in self.rounds if base is not None and kept < base), default=None)
        remove(*(self.path(kept) for kept in self.rounds if kept not in (round, base, before)))

    def path(self, round: int) -> Path:
        """The file of a round."""
        return self.folder / f"{round:08d}.rows"
