"""FitCLI: Lightning's command line with fedlit's trainer, clients and data; finds the run folder and W&B."""

import argparse
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types
from jsonargparse import DefaultHelpFormatter, get_loader, set_loader
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities.exceptions import MisconfigurationException  # type: ignore[attr-defined]  # no __all__

from fedlit import __version__, import_all, models
from fedlit.client.base import Client
from fedlit.client.weights_file import WeightsFile
from fedlit.config.files import given_configs
from fedlit.config.parse_errors import bounded, explain, read_yaml
from fedlit.data.base import FederatedDataModule
from fedlit.errors import ConfigError, require
from fedlit.recorded import ReadFromFile
from fedlit.results.config_file import result_settings
from fedlit.results.folder import fingerprint, run_name
from fedlit.trainer.progress_bar import is_first_rank
from fedlit.trainer.trainer import FederatedTrainer
from fedlit.trainer.wandb.session import wandb_run
from fedlit.trainer.wandb.users import WandbUsers

_LIBRARIES = ("torch", "torchvision", "torchmetrics", "pytorch_lightning", "lightning_fabric")
_MANY = 40

set_loader("yaml", bounded(get_loader("yaml")), exceptions=(yaml.YAMLError,))  # for options and the files they name


class ShortHelp(DefaultHelpFormatter):
    """Help that lists fedlit's and the user's networks, and not the 500 layers of torch."""

    def _expand_help(self, action: argparse.Action) -> str:  # argparse has no public hook before it wraps lines
        return re.sub(r"known subclasses: ([\w.]+(?:, [\w.]+)*)", self._shortened, super()._expand_help(action))

    def _shortened(self, match: re.Match[str]) -> str:
        names = match[1].split(", ")
        if len(names) <= _MANY:
            return match[0]
        nets = {f"fedlit.{name}" for name in models.__all__}
        nets_of_users = [
            name for name in names if name in nets or name.partition(".")[0] not in ("fedlit", *_LIBRARIES)
        ]
        return f"known subclasses: {', '.join(nets_of_users)}; any other by its import path"


class Parser(LightningArgumentParser):
    """A parser that raises errors of one paragraph instead of ending the process."""

    def __init__(self, *args: Any, formatter_class: type[DefaultHelpFormatter] = ShortHelp, **kwargs: Any) -> None:
        super().__init__(*args, formatter_class=formatter_class, **kwargs)

    configs: dict[str, object] | None = None
    """Path -> content of the configs on the command line, so that errors can name the file; None in a class's parser.

    They are read before parsing, which changes into the config's folder.
    """

    def error(self, message: str, ex: Exception | None = None) -> Any:
        """Raise instead of printing usage and exiting."""
        if self.configs is None:
            return super().error(message, ex)
        raise ConfigError(explain(message, self, self.configs)) from ex


class FitCLI(LightningCLI):
    """`fedlit fit`: Lightning's command line, with a run folder and W&B."""

    command = "fit"
    description = "Train. --model.help FedBC and --data.help Synthetic explain the options of a class."
    trainer: FederatedTrainer

    def __init__(self, arguments: list[str]) -> None:
        import_all()
        super().__init__(
            Client,
            FederatedDataModule,
            trainer_class=FederatedTrainer,
            parser_class=Parser,
            subclass_mode_model=True,
            subclass_mode_data=True,
            save_config_callback=None,
            seed_everything_default=False,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            parser_kwargs={
                "prog": f"fedlit {self.command}",
                "description": self.description,
                "default_env": False,
                "allow_abbrev": False,  # an abbreviation is a mistake: --seed would silently be --seed_everything
                "dump_header": [f"fedlit=={__version__}"],
            },
            args=arguments,
            run=False,
        )

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Lightning's seed option, but always a number, so that every run can be repeated."""
        parser.add_argument(
            "--seed_everything",
            type=int,
            default=0,
            help="seed of initial weights, cohorts and batches (data.seed: the data)",
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options of the run folder and of W&B."""
        parser.add_argument("--run", type=str | None, default=None, help="the run's folder; runs/<name> unless given")
        parser.add_argument("--resume", action="store_true", help="continue the run in that folder, if there is one")
        parser.add_argument(
            "--overwrite", action="store_true", help="delete the run in that folder and start from its first round"
        )
        parser.add_argument(
            "--wandb",
            type=Literal["online", "offline", "disabled"] | None,
            default=None,
            help="log to Weights & Biases; unless given, online if there are credentials",
        )
        parser.add_argument("--wandb_artifact", action="store_true", help="keep the checkpoints in W&B too")
        parser.add_argument(
            "--experiment", type=str | None, default=None, help="the run's W&B group; the config's name unless given"
        )
        self.add_own_arguments(parser)
        parser.link_arguments("seed_everything", "trainer.seed")
        for name in ("run", "resume", "overwrite"):
            parser.link_arguments(name, f"trainer.{name}")

    def add_own_arguments(self, parser: LightningArgumentParser) -> None:
        """Add the options that `fit` alone has."""
        parser.add_argument(
            "--replay",
            type=str | None,
            default=None,
            help="events.jsonl of a federation of nodes: repeat what happened there, with the same bits",
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse the arguments of the command."""
        assert isinstance(parser, Parser)
        parser.configs = {path: read_yaml(path) for path in given_configs(args)}
        for path, content in parser.configs.items():
            if not isinstance(content, dict):
                raise ConfigError(f"{path} holds no keys. Give a YAML file with trainer, model and data.")
        self.config = parser.parse_args(args)
        seed = self.config.seed_everything
        require(0 <= seed < 2**32, f"seed_everything is {seed}; give a whole number from 0 to 4294967295.")

    def instantiate_classes(self) -> None:
        """Lightning's method, with plain errors."""
        with plain_refusals():
            super().instantiate_classes()

    def instantiate_trainer(self, **kwargs: Any) -> FederatedTrainer:
        """The trainer with its run folder and logger."""
        config = self.plain_config()
        folder = Path(self.config.run) if self.config.run else Path("runs") / self.default_name(config)
        resume = self.config.resume and not self.config.overwrite
        tracking = None
        if is_first_rank():
            tracking = wandb_run(
                self.config.wandb,
                folder,
                config,
                experiment=self.experiment(config),
                resume=resume,
                artifact=self.config.wandb_artifact,
            )
        asked = self.config_init.trainer.logger
        loggers = list(asked) if isinstance(asked, list) else [asked] if isinstance(asked, Logger) else []
        trainer = super().instantiate_trainer(
            run=folder,
            logger=[*loggers, *([tracking] if tracking else [])] or bool(asked),
            **kwargs,
        )
        assert isinstance(trainer, FederatedTrainer)
        trainer.config = config
        trainer.initial_weights = "net"  # the net was built after the seed was set
        if tracking is not None:
            trainer.callbacks.append(WandbUsers())
        return trainer

    def default_name(self, config: dict[str, Any]) -> str:
        """The run folder's name, unless --run gives it; a replay has a folder beside."""
        return f"{default_name(config)}-replay" if self.config.replay else default_name(config)

    def experiment(self, config: dict[str, Any]) -> str:
        """The run's W&B group: --experiment, WANDB_RUN_GROUP, the names of its configs, or <data>_<algorithm>."""
        group = self.config.experiment or os.environ.get("WANDB_RUN_GROUP")
        assert isinstance(self.parser, Parser)
        files = "+".join(Path(path).stem for path in self.parser.configs or [])
        return group or files or "_".join(class_names(config)).lower()

    def plain_config(self) -> dict[str, Any]:
        """The complete, resolved config as plain data, without options that only say where and how to write.

        Recorded traces and initial weights appear with a fingerprint of their file: other content makes another run.
        """
        config = yaml.safe_load(self.parser.dump(self.config, skip_unset=False, format="yaml"))
        clock = self.config_init.trainer.clock
        for name, part in vars(clock.latency).items() if clock is not None else ():
            if isinstance(part, ReadFromFile):
                config["trainer"]["clock"]["latency"][name]["init_args"] = part.known_by()
        options = config["model"]["init_args"]
        if options.get("init_from") is not None:
            weights = options["init_from"]
            file = weights if isinstance(weights, str) else weights.get("init_args", weights)["file"]
            options["init_from"] = WeightsFile(file).known_by()
        return {name: config[name] for name in ("seed_everything", "trainer", "model", "data")}


@contextmanager
def plain_refusals() -> Iterator[None]:
    """Raise a constructor's own message as a ConfigError, without the text that the parser puts around it."""
    try:
        yield
    except ValueError as error:
        refused = re.search(r"^ +- (?!Expected an? |Does not validate)(.*)", str(error), re.MULTILINE)
        if refused is None:
            raise
        raise ConfigError(refused[1]) from error
    except MisconfigurationException as error:  # Lightning's own errors, such as for a wrong max_time
        raise ConfigError(" ".join(str(error).split())) from error


def default_name(config: dict[str, Any]) -> str:
    """<data>-<algorithm>-<seed>-<short hash>: more rounds, another engine or logger keep the folder."""
    data, algorithm = class_names(config)
    return run_name(data, algorithm, config["seed_everything"], fingerprint(result_settings(config)))


def class_names(config: dict[str, Any]) -> tuple[str, str]:
    """The data set and the algorithm: `Synthetic`, `FedBC`."""
    data, algorithm = (config[part]["class_path"].rsplit(".", 1)[-1] for part in ("data", "model"))
    return data, algorithm
