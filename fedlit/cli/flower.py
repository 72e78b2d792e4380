"""`fedlit flower`: a federation of real nodes on Flower. Its commands are in the files flower_*.py beside this one."""

from importlib import import_module

from fedlit.errors import ConfigError, nearest
from fedlit.flower.programs import find_flower

COMMANDS = {
    "try": "a whole federation on this machine: fedlit flower try --config synthetic_fedbc --nodes 5",
    "run": "the server of a federation: fedlit flower run --config X --nodes 3 --listen HOST:PORT --keys DIR",
    "node": "a client: fedlit flower node --name clinic-a --data own.npz --server HOST:PORT --ca ca.crt --key clinic-a",
    "keys": "keys for server and nodes: fedlit flower keys --out keys --host HOST --nodes clinic-a clinic-b",
}


def flower(arguments: list[str]) -> int:
    """Call the command that comes first; the others are its options."""
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {word:<6}{text}" for word, text in COMMANDS.items()]
        print("\n".join(["usage: fedlit flower COMMAND [options]", "", *lines]))
        return 0
    word, options = arguments[0], arguments[1:]
    if word not in COMMANDS:
        near = nearest(word, COMMANDS)
        raise ConfigError(f"There is no command 'flower {word}'. {near}Commands: {', '.join(COMMANDS)}.")
    find_flower()  # before anything is imported that Flower brings
    return int(import_module(f"fedlit.cli.flower_{word}").main(options))
