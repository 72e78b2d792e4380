"""The server's machine: a SuperLink, the app of a run, and the link to its nodes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedlit.flower.bundle import write_bundle
from fedlit.flower.keys import Keys
from fedlit.flower.link import FlowerLink
from fedlit.flower.programs import Programs, wait_for_port

_APP_WITHIN_S = 120.0


@dataclass(frozen=True)
class Listening:
    """Where nodes reach the SuperLink, and how they and it are known.

    Args:
        host: address on which it listens.
        port: likewise.
        keys: None for a network that is trusted.
    """

    host: str
    port: int
    keys: Keys | None

    @property
    def options(self) -> list[str]:
        """Options of the SuperLink."""
        place = ["--host", self.host, "--port", str(self.port), "--disable-runtime-dependency-installation"]
        return [*place, *(["--insecure"] if self.keys is None else self.keys.superlink_options)]

    @property
    def client_lines(self) -> list[str]:
        """Lines of the configuration of Flower's commands."""
        return ["insecure = true"] if self.keys is None else [f'root-certificates = "{self.keys.ca}"']

    @property
    def address(self) -> str:
        """Where Flower's commands on this machine find it."""
        return f"{'127.0.0.1' if self.host == '0.0.0.0' else self.host}:{self.port}"


def start_superlink(programs: Programs, listening: Listening) -> None:
    """Start it, and register the nodes' keys once it listens."""
    child = programs.start_own("SuperLink", "guarded_superlink", listening.options)
    wait_for_port(listening.address, child)
    for key in listening.keys.public_keys() if listening.keys is not None else ():
        programs.register(key, listening.address, listening.client_lines)


@contextmanager
def submitted(programs: Programs, listening: Listening, sockets: Path, deadline: float) -> Iterator[FlowerLink]:
    """The link of a run that is submitted to the SuperLink; when the block ends, its app does.

    Args:
        programs: Flower's.
        listening: where the SuperLink is.
        sockets: a short path to a private folder.
        deadline: seconds within which a node must answer.
    """
    with FlowerLink(sockets, deadline) as link:
        app = write_bundle(programs.folder / "app", link.path, link.token, programs.registered)
        programs.submit(app, listening.address, listening.client_lines)
        link.wait_for_app(_APP_WITHIN_S, programs.check)
        yield link
