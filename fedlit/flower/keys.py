"""Keys: a folder with the server's certificate, and the keys of nodes. `make_keys.py` fills one for a try.

ca.key  ca.crt              nodes get ca.crt
server.key  server.crt      stay on the server
nodes/NAME  nodes/NAME.pub  a node gets its NAME, the server its NAME.pub
"""

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from fedlit.errors import require


@dataclass(frozen=True)
class Keys:
    """A folder of keys.

    Args:
        folder: as `make_keys` fills it.
    """

    folder: Path

    @property
    def ca(self) -> Path:
        """The certificate by which nodes know the server."""
        return self.folder / "ca.crt"

    @property
    def superlink_options(self) -> list[str]:
        """Options of a SuperLink with these keys."""
        names = {"certfile": "server.crt", "keyfile": "server.key", "ca-certfile": "ca.crt"}
        files = [(f"--ssl-{option}", str(self.folder / name)) for option, name in names.items()]
        return [word for pair in files for word in pair] + ["--enable-supernode-auth"]

    def private(self, node: str) -> Path:
        """The key by which the server knows a node."""
        return self.folder / "nodes" / node

    def public_keys(self) -> list[Path]:
        """The public keys of all nodes."""
        return sorted((self.folder / "nodes").glob("*.pub"))

    def check(self) -> None:
        """ConfigError unless the server's keys are there."""
        missing = [name for name in ("ca.crt", "server.crt", "server.key") if not (self.folder / name).exists()]
        require(
            not missing,
            f"{self.folder} has no {', '.join(missing)}. Make keys with fedlit flower keys --out {self.folder}, or "
            "give those of your IT the names ca.crt, server.crt, server.key and nodes/NAME.pub; --insecure does "
            "without, on a network that you trust.",
        )


def write_secret(path: Path) -> Path:
    """Write a new secret that two processes of this user share, and nobody else can read; returns its file."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_bytes(32))
    return path
