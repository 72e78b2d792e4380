"""The machine of a client: a SuperNode, which talks to the SuperLink, its relay, and the worker that has the data."""

from dataclasses import dataclass
from pathlib import Path

from fedlit.config.described_model import made_from_description
from fedlit.data.client_file import ClientFile
from fedlit.flower.keys import write_secret
from fedlit.flower.programs import Child, Programs, free_port
from fedlit.flower.worker import Worker
from fedlit.remote.node import Node


@dataclass(frozen=True)
class NodeOptions:
    """What the owner of a node says of it."""

    name: str
    data: Path
    rows: Path
    """Folder of what the client keeps between rounds."""
    allowed: tuple[str, ...] = ()
    """Packages whose classes a server may name, besides fedlit's and torch.nn's."""


def make_worker(options: NodeOptions, socket: Path) -> Worker:
    """Read the data, and listen."""
    data = ClientFile(options.data)
    data.setup()
    node = Node(options.name, data, options.rows, lambda described: made_from_description(described, options.allowed))
    return Worker(node, socket)


@dataclass(frozen=True)
class SuperNode:
    """The two programs of a node, besides its worker."""

    supernode: Child
    relay: Child

    def check(self) -> None:
        """ProcessError if one has ended: neither is of use alone."""
        self.supernode.check()
        self.relay.check()

    def end(self) -> None:
        """End both."""
        self.relay.end()
        self.supernode.end()


def start_supernode(
    programs: Programs, name: str, socket: Path, server: str, ca: Path | None, key: Path | None
) -> SuperNode:
    """Start the SuperNode of a node and its relay.

    Args:
        programs: Flower's.
        name: of the node.
        socket: on which its worker listens.
        server: host:port of the SuperLink.
        ca: the certificate by which the server is known; None trusts the network.
        key: the private key by which the server knows the node.
    """
    port, secret = free_port(), write_secret(programs.folder / f"{name}.secret")
    options = ["--superlink", server, "--port", str(port)]
    options += ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
    options += ["--insecure"] if ca is None else ["--root-certificates", str(ca)]
    options += [] if key is None else ["--auth-supernode-private-key", str(key)]
    supernode = programs.start(f"SuperNode of {name}", "flower-supernode", options)
    arguments = [f"127.0.0.1:{port}", str(secret), name, str(socket)]
    return SuperNode(supernode, programs.start_own(f"relay of {name}", "node_relay", arguments))
