"""Command lines of `fedlit fit`, checked before any of them runs with the errors that fit would give."""

import argparse
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Any

from jsonargparse import Namespace

from fedlit.config.files import resolve_configs
from fedlit.config.fit_cli import FitCLI, plain_refusals
from fedlit.errors import ConfigError
from fedlit.server.base import ServerCallback
from fedlit.trainer.trainer import FederatedTrainer, quiet_lightning

_OURS = {
    "run": "every run gets a folder of its own; --out DIR says where they are",
    "resume": "every run is continued where it stopped",
    "overwrite": "every run is continued where it stopped; delete its folder to begin it anew",
}


class ParsedFit(FitCLI):
    """The command line of `fit` as far as its options: nothing is made of them."""

    def instantiate_classes(self) -> None:
        """Nothing: a logger or a callback may write when it is made."""


def parse_fit(arguments: Sequence[str]) -> Any:
    """The options of a command line, or fit's ConfigError."""
    return _parsed(arguments).config


def check_fit(arguments: Sequence[str]) -> Any:
    """As `parse_fit`, and the parts are made: what their constructors refuse is refused here."""
    cli = _parsed(arguments)
    with plain_refusals():
        FederatedTrainer(**_made(cli, ("trainer", "model", "data")).trainer)
    return cli.config


def made_parts(arguments: Sequence[str]) -> Any:
    """The algorithm of a command line (`model`), and what its trainer is given (`trainer`), as objects.

    Of callbacks only those of servers: others may write when they are made.
    """
    with plain_refusals():
        return _made(_parsed(arguments), ("trainer", "model"))


def made_model(arguments: Sequence[str]) -> Any:
    """The algorithm of a command line alone."""
    with plain_refusals():
        return _made(_parsed(arguments), ("model",)).model


def _made(cli: ParsedFit, names: Sequence[str]) -> Any:
    trainer = cli.config.trainer.clone()
    trainer.logger, trainer.run = False, None  # they may write when they are made, as Lightning's callbacks may
    given = trainer.callbacks or []
    trainer.callbacks = [one for one in (given if isinstance(given, list) else [given]) if _is_of_a_server(one)]
    parts = {name: trainer if name == "trainer" else cli.config[name] for name in names}
    return cli.parser.instantiate(Namespace(**parts))  # type: ignore[no-untyped-call]  # jsonargparse's has no types


def _is_of_a_server(callback: Namespace) -> bool:
    return issubclass(resolve_name(callback.class_path), ServerCallback)


def _parsed(arguments: Sequence[str]) -> ParsedFit:
    quiet_lightning()
    return ParsedFit(resolve_configs(list(arguments)))


def names_of(arguments: Sequence[str]) -> list[str]:
    """The options that are named: `--model.lr=0.1` and `--model.lr 0.1` name model.lr."""
    return [word.partition("=")[0].removeprefix("--") for word in arguments if word.startswith("--")]


def refuse_options(arguments: Sequence[str], reasons: dict[str, str] | None = None) -> None:
    """Options that every run gets from us, and more that the caller names, each with its reason."""
    refused = _OURS | (reasons or {})
    for name in names_of(arguments):
        if name in refused:
            raise ConfigError(f"--{name} cannot be given here: {refused[name]}.")


def add_runner_arguments(parser: argparse.ArgumentParser) -> None:
    """What every command with many runs takes, and any other option for `fedlit fit`."""
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time; they share the cores (1)")
    parser.add_argument("--retry-failed", action="store_true", help="also run what failed before")
    parser.epilog = "Any other option is one of `fedlit fit` and holds for every run, such as --trainer.rounds 20."
    parser.allow_abbrev = False  # --data is fit's, not the beginning of one of ours
    parser.set_defaults(overrides=[])
