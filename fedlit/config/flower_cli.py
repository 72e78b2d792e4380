"""FlowerCLI: the command line of `fedlit flower run` and `fedlit flower try`: that of `fit`, for clients elsewhere."""

import argparse
from typing import Any

from pytorch_lightning.cli import LightningArgumentParser

from fedlit.config.fit_cli import FitCLI, default_name
from fedlit.errors import require
from fedlit.remote.pace import check_pace
from fedlit.results.events import Pace
from fedlit.trainer.trainer import FederatedTrainer


class FlowerCLI(FitCLI):
    """The command line of `fit`; the run has a folder beside that of the simulation."""

    command = "flower"
    description = (
        "Train with clients that are nodes. Takes what fit takes; --model.help FedBC explains the options of a class."
    )

    def add_own_arguments(self, parser: LightningArgumentParser) -> None:
        """None: what happens in a federation is not known before."""

    def instantiate_trainer(self, **kwargs: Any) -> FederatedTrainer:
        """A trainer that writes a checkpoint after every round: nodes keep the rows of the last few rounds alone."""
        return super().instantiate_trainer(checkpoint_every=1, **kwargs)

    def default_name(self, config: dict[str, Any]) -> str:
        """The folder beside that of the same run in a simulation."""
        return f"{default_name(config)}-flower"


def federation_parser(command: str, description: str | None) -> argparse.ArgumentParser:
    """The options that `run` and `try` have before those of fit."""
    parser = argparse.ArgumentParser(prog=f"fedlit flower {command}", description=description, allow_abbrev=False)
    parser.epilog = "All other options are those of fedlit fit: --config FILE, --trainer.rounds 5, --run DIR, --resume."
    parser.add_argument("--nodes", type=int, required=True, help="how many there are; each is one client")
    parser.add_argument(
        "--deadline", type=float, default=300.0, help="seconds within which a node must answer; 300 unless given"
    )
    parser.add_argument(
        "--pace",
        choices=("real", "clock"),
        help="what decides which servers of a cloud step next: the arrivals of their nodes' answers (real, unless "
        "given), or trainer.clock, with fit's numbers (clock)",
    )
    parser.add_argument("--insecure", action="store_true", help="without TLS and keys, on a network that you trust")
    parser.add_argument("--timings", action="store_true", help="print seconds by phase, and memory, at the end")
    return parser


def check_options(options: argparse.Namespace) -> None:
    """ConfigError for numbers that make no sense."""
    require(options.nodes >= 1, f"--nodes is {options.nodes}; give 1 or more.")
    require(
        options.deadline >= 10,
        f"--deadline is {options.deadline:g} s, but Flower alone may take 5 s to carry a message and its answer. Give "
        "10 or more.",
    )


def pace_of(options: argparse.Namespace, cli: FlowerCLI) -> Pace:
    """What decides which servers of a cloud step next; ConfigError for a real pace that makes no sense."""
    rounds = cli.trainer.loop.options
    if options.pace == "clock" or (options.pace is None and rounds.cloud is None):
        return "clock"
    check_pace(rounds)
    return "real"


def check_count(cli: FlowerCLI, nodes: int) -> None:
    """ConfigError if a round needs more clients than there are nodes."""
    drawn = cli.trainer.loop.options.clients_per_round
    require(
        drawn <= nodes,
        f"trainer.clients_per_round is {drawn}, but --nodes is {nodes}. Start as many nodes, or draw fewer clients.",
    )
