"""`fedlit`: parses, calls, prints. `fit` and `data` are LightningCLI; every command is a thin file beside this one."""

import argparse
import io
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from fedlit import import_all as import_public_names
from fedlit.errors import ConfigError, FedlitError, nearest

COMMANDS = {
    "fit": "train: fedlit fit --config synthetic_fedbc.yaml",
    "flower": "train with clients on other machines: fedlit flower try --config synthetic_fedbc --nodes 5",
    "data": "show who holds which samples, without training: fedlit data --config synthetic_fedbc.yaml",
    "sweep": "search settings with a W&B sweep file, without a server: fedlit sweep synthetic_fedbc --jobs 2",
    "compare": "several configs with several seeds in one command: fedlit compare --configs A,B --seeds 5",
    "reproduce": "make a paper's table again, beside its numbers: fedlit reproduce list",
    "report": "tables with seeds and intervals, and figures: fedlit report runs",
    "dashboard": "runs as one HTML file to look around in: fedlit dashboard runs",
    "workspace": "make a W&B workspace that shows users, coefficients and λ: fedlit workspace --entity NAME",
    "list": "algorithms, data sets, configs, sweeps, tables and metrics, each with a line",
    "evaluate": "measure the models of a run once more, on its own data or others: fedlit evaluate RUN --data.seed 5",
    "export": "the models of a run as plain state dicts",
    "conformance": "check every algorithm, or your own, against what all must pass",
}

MOVED = {
    "bench": "has left the package. Type: python -m benchmarks (or make bench), in a checkout of fedlit.",
    "cloud": "is gone: a cloud's clients are nodes on Flower now, and its servers are in one process. Type: fedlit "
    "flower try --config X --nodes N, with a node for each client, or fedlit flower run for nodes on other machines. "
    "--pace says whether real arrivals or trainer.clock decide which server steps next. fedlit fit simulates the same "
    "cloud.",
}
"""Commands of earlier versions -> what became of them."""
WORDS_ONLY = {"list"}
"""Commands that need nothing but words, and so no torch."""
MANY_RUNS = {"compare", "sweep", "reproduce"}
"""Commands that start runs, which are forked from a process that imports all that they need."""
READERS = {"report", "dashboard", "workspace", "list", "export"}
"""Commands that build nothing: called in a folder of somebody else's runs, they import nothing from there."""


def main(argv: Sequence[str] | None = None, ready: Callable[[], object] = lambda: None) -> None:
    """Run a command; exit codes: 0 done, 1 failed, 2 wrong input, 130 interrupted (resumable).

    Args:
        argv: the words of the command line; the process's own unless given.
        ready: called when all that takes seconds is imported, and the command begins.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    print_anything()
    try:
        code = dispatch(arguments, ready)
    except FedlitError as error:
        if debug:
            raise
        tell(str(error))
        code = error.exit_code
    except KeyboardInterrupt:
        tell("stopped at once; a run with checkpoints can be continued with --resume.")
        code = 130
    except MemoryError as error:
        if debug:
            raise
        tell(
            f"the memory is full ({error or 'nothing more can be had'}). Give the run more, or make it smaller; a run "
            "with checkpoints can be continued with --resume."
        )
        code = 1
    except Exception:
        if not another_rank_reports():
            raise
        code = 1
    sys.exit(code)


def tell(why: str) -> None:
    """Say how a command ends, unless another process of the same run does."""
    if not another_rank_reports():
        print(f"fedlit: {why}", file=sys.stderr)


def another_rank_reports() -> bool:
    """Whether this process is one of several of a run, and not the one that talks to the user."""
    group = sys.modules.get("fedlit.engines.processes.group")  # where nothing has imported it there are no others
    return group is not None and group.another_rank_reports()


def print_anything() -> None:
    """A letter that the terminal's encoding lacks, such as λ in ASCII, becomes a question mark and not an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def dispatch(arguments: list[str], ready: Callable[[], object]) -> int:
    """The command's exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0
    if arguments[0] == "--version":
        print(f"fedlit {version('fedlit')}")
        return 0
    name, rest = arguments[0], arguments[1:]
    check_command(name, rest)
    if name in MANY_RUNS:
        import_module("fedlit.experiments.fork_server").IMPORTED.start()  # first: it imports on another core
    if name not in WORDS_ONLY:
        import_all()
    ready()
    if name not in READERS and (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # a config may name a class of the user's, in the folder where fedlit is called
    if name == "fit":
        from fedlit.cli.fit import fit  # Lightning's command line takes two seconds to import

        return fit(rest)
    if name == "flower":
        from fedlit.cli.flower import flower  # as above, and flwr may be missing

        return flower(rest)
    if name == "data":
        from fedlit.cli.data import show_data  # as above

        return show_data(rest)
    command = import_module(f"fedlit.cli.{name}")
    parser = argparse.ArgumentParser(prog=f"fedlit {name}", description=COMMANDS[name])
    command.add_arguments(parser)
    args, others = parser.parse_known_args(rest)
    if others and "overrides" not in args:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    args.overrides = others  # sweep and compare hand them to fit
    return int(command.main(args))


def import_all() -> None:
    """torch, Lightning and all of fedlit's classes, which configs and run folders may name; takes seconds."""
    import_public_names()
    import_module("fedlit.trainer.progress_bar").show_lines()


def check_command(name: str, rest: list[str]) -> None:
    """A command first, its options after it."""
    if name in COMMANDS:
        return
    if name.startswith("-"):
        verb = next((word for word in rest if word in COMMANDS), "fit")
        raise ConfigError(f"'{name}' is before the command, but belongs after it. Write: fedlit {verb} {name} …")
    if name in MOVED:
        raise ConfigError(f"`fedlit {name}` {MOVED[name]}")
    raise ConfigError(f"There is no command '{name}'. {nearest(name, COMMANDS)}Commands: {', '.join(COMMANDS)}.")


def usage() -> str:
    """The text of `fedlit --help`."""
    lines = [f"  {name:<13}{text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: fedlit COMMAND [options]        fedlit COMMAND --help explains each option",
            "",
            *lines,
            "",
            "options: --version; --debug shows the traceback of an error",
        ]
    )
