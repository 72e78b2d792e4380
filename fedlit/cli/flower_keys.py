"""`fedlit flower keys`: a certificate authority, the server's certificate and nodes' keys, for a try."""

import argparse
from pathlib import Path

from fedlit.flower.make_keys import make_keys

_SAID = """{folder}: keys for a try.
  The server needs the folder: fedlit flower run --keys {folder}
  A node needs {folder}/ca.crt and its own {folder}/nodes/NAME, and nothing else of it.
In a hospital, IT issues the server's certificate from its own authority (ca.crt, server.crt, server.key), every clinic
makes its own key with ssh-keygen -t ecdsa -b 384, and sends only the .pub file to the server's folder nodes/."""


def main(arguments: list[str]) -> int:
    """Make keys for a try, and say what IT would do instead."""
    parser = argparse.ArgumentParser(prog="fedlit flower keys", description=main.__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the keys; it is made")
    parser.add_argument(
        "--host", action="append", default=[], help="name or address by which nodes reach the server; repeatable"
    )
    parser.add_argument("--nodes", nargs="+", required=True, metavar="NAME", help="names of the nodes")
    options = parser.parse_args(arguments)
    make_keys(options.out, ["127.0.0.1", "localhost", *options.host], options.nodes)
    print(_SAID.format(folder=options.out))
    return 0
