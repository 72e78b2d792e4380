"""`fedlit flower run`: the server of a federation. It starts a SuperLink, submits the run, and trains as `fit` does."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from fedlit.cli.fit import conclude, logged_to
from fedlit.config.described_model import described_model
from fedlit.config.files import resolve_configs
from fedlit.config.flower_cli import FlowerCLI, check_count, check_options, federation_parser, pace_of
from fedlit.errors import ConfigError, require
from fedlit.flower.keys import Keys
from fedlit.flower.link import FlowerLink
from fedlit.flower.programs import Programs
from fedlit.flower.superlink import Listening, start_superlink, submitted
from fedlit.flower.timings import memory_lines, this_process
from fedlit.remote.link import Link
from fedlit.remote.loop import RemoteLoop
from fedlit.remote.nodes import Nodes, meet
from fedlit.remote.told_data import ToldData
from fedlit.results.events import Pace
from fedlit.results.folder import RunFolder
from fedlit.trainer.trainer import quiet_lightning
from fedlit.trainer.wandb.session import tracked

EVERYWHERE, HERE = "0.0.0.0:9092", "127.0.0.1:9092"
"""Where the server listens unless it is told: without keys, on this machine alone."""


def main(arguments: list[str]) -> int:
    """The server of a federation, for nodes that are started with fedlit flower node."""
    began = time.monotonic()
    parser = federation_parser("run", main.__doc__)
    parser.add_argument("--listen", metavar="HOST:PORT", help=f"{EVERYWHERE} unless given; {HERE} with --insecure")
    parser.add_argument("--keys", type=Path, metavar="DIR", help="of fedlit flower keys, or of your IT")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds to wait for the nodes; 600 unless given")
    options, others = parser.parse_known_args(arguments)
    check_options(options)
    place = options.listen or (HERE if options.insecure else EVERYWHERE)
    listening = listening_of(place, options.keys, is_insecure=options.insecure)
    quiet_lightning()
    cli = FlowerCLI(resolve_configs(others))
    check_count(cli, options.nodes)
    pace = pace_of(options, cli)
    with TemporaryDirectory(prefix="fedlit-", ignore_cleanup_errors=True) as folder:
        programs = Programs(Path(folder))
        try:
            start_superlink(programs, listening)
            with submitted(programs, listening, Path(folder), options.deadline) as link:
                print(f"waiting for {options.nodes} nodes at {place}", flush=True)
                link.timings.began = began
                names = link.wait_for_nodes(options.nodes, options.patience, programs.check)
                print(f"the nodes are {', '.join(names)}: clients 0 to {len(names) - 1}, in this order", flush=True)
                code = train(cli, link, names, pace)
                if options.timings:
                    show_timings(link, programs.processes())
                return code
        finally:
            programs.end()


def train(cli: FlowerCLI, link: Link, names: Sequence[str], pace: Pace = "clock") -> int:
    """Train with these nodes; ends as `fedlit fit` does."""
    trainer, folder = cli.trainer, cli.trainer.folder
    assert isinstance(folder, RunFolder)
    told = meet(link, names)
    model = described_model(cli.plain_config()["model"])
    with tracked(trainer, artifact=cli.config.wandb_artifact), logged_to(folder):
        trainer.use_loop(partial(RemoteLoop, nodes=Nodes(link, list(told)), model=model, pace=pace))
        trainer.fit(cli.model, datamodule=ToldData(told))
    return conclude(trainer)


def show_timings(link: FlowerLink, processes: Sequence[tuple[str, int]]) -> None:
    """Print the seconds of exchanges by phase, and the memory of these processes."""
    for line in (*link.timings.lines(), "", *memory_lines([this_process(), *processes])):
        print(line, flush=True)


def listening_of(place: str, keys: Path | None, *, is_insecure: bool) -> Listening:
    """Where the SuperLink listens; ConfigError unless there are keys, or the word that does without."""
    host, _, port = place.rpartition(":")
    require(
        bool(host) and port.isdigit() and 0 < int(port) < 2**16,
        f"--listen is {place}; give an address and a port, such as 0.0.0.0:9092.",
    )
    if is_insecure:
        return Listening(host, int(port), None)
    if keys is None:
        raise ConfigError(
            "--keys is missing: nodes and server must know each other. Make keys with fedlit flower keys, or ask your "
            "IT for them; --insecure does without, on a network that you trust."
        )
    found = Keys(keys.resolve())
    found.check()
    return Listening(host, int(port), found)
