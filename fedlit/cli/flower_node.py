"""`fedlit flower node`: one client of a federation, with its own data: a worker, and a SuperNode that talks for it."""

import argparse
import signal
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

from fedlit.errors import ConfigError, ProcessError, require
from fedlit.flower.programs import Programs
from fedlit.flower.supernode import NodeOptions, SuperNode, make_worker, start_supernode
from fedlit.flower.worker import Worker

_AGAIN_S = 10
"""A server may not be there yet, or not know the node's key yet."""
_LOOK_S = 0.5
_NEVER_ASKED = (
    "The server has not been reached yet: perhaps it is not there, does not know the key of this node, or --ca is not "
    "its authority."
)
_GONE = "The server was reached before: it has ended, or the network is cut."


def main(arguments: list[str]) -> int:
    """One client of a federation, with its own data. Its rows are kept on this machine, and samples never leave it."""
    parser = argparse.ArgumentParser(prog="fedlit flower node", description=main.__doc__, allow_abbrev=False)
    parser.add_argument("--name", required=True, help="by which the server knows it, with its rows")
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", help="an .npz file (fedlit data export)")
    parser.add_argument("--server", required=True, metavar="HOST:PORT", help="where fedlit flower run listens")
    parser.add_argument("--ca", type=Path, metavar="FILE", help="the certificate by which the server is known")
    parser.add_argument("--key", type=Path, metavar="FILE", help="the private key by which the server knows this node")
    parser.add_argument("--insecure", action="store_true", help="without TLS and keys, on a network that you trust")
    parser.add_argument("--rows", type=Path, metavar="DIR", help="of what the client keeps; node-NAME unless given")
    parser.add_argument(
        "--allow", action="append", default=[], metavar="PACKAGE", help="make classes of this package too; repeatable"
    )
    options = parser.parse_args(arguments)
    check_options(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # else its programs and files would stay
    rows = options.rows or Path(f"node-{options.name}")
    rows.mkdir(mode=0o700, parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="fedlit-", ignore_cleanup_errors=True) as folder:
        socket = Path(folder) / "worker.sock"
        worker = make_worker(NodeOptions(options.name, options.data, rows, tuple(options.allow)), socket)
        programs = Programs(Path(folder))
        try:
            Thread(target=worker.serve, daemon=True).start()
            print(f"{options.name}: its rows are in {rows}; looking for the server at {options.server}", flush=True)
            while True:
                try:
                    serve(
                        start_supernode(programs, options.name, socket, options.server, options.ca, options.key), worker
                    )
                except ProcessError as error:
                    why = _GONE if worker.asked else _NEVER_ASKED
                    print(f"{why} {error} It is tried again in {_AGAIN_S} s; Ctrl-C or SIGTERM ends this.", flush=True)
                programs.end()
                time.sleep(_AGAIN_S)
        finally:
            programs.end()
            worker.close()


def serve(node: SuperNode, worker: Worker) -> None:
    """Wait until a program of a node ends, which is a ProcessError; say when the server asks for the first time."""
    before, is_asked = worker.asked, False
    while True:
        if worker.asked > before and not is_asked:
            is_asked = True
            print(f"{worker.node.name}: the server has asked; this node takes part", flush=True)
        node.check()
        time.sleep(_LOOK_S)


def check_options(options: argparse.Namespace) -> None:
    """ConfigError for what is missing or makes no sense."""
    name = options.name
    require(
        name.replace("-", "").replace("_", "").isalnum(),
        f"--name is '{name}'; give letters, digits, - and _ only, because it names a folder.",
    )
    if options.insecure:
        return
    for option, file in (("ca", options.ca), ("key", options.key)):
        if file is None:
            raise ConfigError(
                f"--{option} is missing: server and node must know each other. The server's owner has it, or makes it "
                "with fedlit flower keys; --insecure does without, on a network that you trust."
            )
        require(file.exists(), f"--{option} is {file}, but there is no such file.")
