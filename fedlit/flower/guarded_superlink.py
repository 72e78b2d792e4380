"""A SuperLink that serves nodes to everybody, and the rest to its own machine alone. A program, as flower-superlink is.

In Flower 1.41 one address serves three sorts of callers: nodes (/v1/fleet/), people who submit apps (/v1/control/) and
apps (/v1/runtime/). The nodes' keys guard the first alone, and the Flower that can be installed has no accounts for the
second. Without this, whoever reaches the port may submit code, register a key, or take the place of the ServerApp.
"""

import ipaddress

from flwr.superlink import extensions
from flwr.superlink.cli import flower_superlink
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_NODES = "/v1/fleet/"
REFUSED = "This server of fedlit serves nodes. Apps are submitted to it on its own machine alone."


class NodesAlone:
    """Refuses what does not come from a node, unless it comes from this machine.

    Args:
        app: what answers the rest.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        is_request = scope["type"] != "lifespan"
        if is_request and not str(scope["path"]).startswith(_NODES) and not is_here(scope["client"], scope["server"]):
            await PlainTextResponse(REFUSED, status_code=403)(scope, receive, send)
            return
        await self.app(scope, receive, send)


def is_here(caller: tuple[str, int] | None, server: tuple[str, int | None] | None) -> bool:
    """Whether a caller is on this machine: it has a loopback address, or the one that it calls.

    Args:
        caller: address and port of the caller.
        server: likewise, of this end of the connection.
    """
    if caller is None:
        return False
    address = ipaddress.ip_address(caller[0])
    is_loopback = (getattr(address, "ipv4_mapped", None) or address).is_loopback
    return is_loopback or (server is not None and caller[0] == server[0])


def main() -> None:
    """Run the SuperLink with the options of the command line."""
    extensions.get_middleware = lambda: (Middleware(NodesAlone),)  # the outermost: before a request is read
    flower_superlink()


if __name__ == "__main__":
    main()
