"""CloudCLI: the command line of `fedlit cloud`, which every process of a cloud reads for itself."""

from typing import Any, Literal

from pytorch_lightning.cli import LightningArgumentParser, LightningCLI

from fedlit.config.fit_cli import FitCLI
from fedlit.errors import require
from fedlit.server.base import ServerCallback
from fedlit.trainer.trainer import FederatedTrainer


class CloudCLI(FitCLI):
    """The command line of `fit`, and how many processes there are."""

    command = "cloud"
    description = (
        "Train with the coordinator, the servers and the clients of a cloud as processes on this machine. Takes what "
        "fit takes; --model.help FedBCD and --data.help Synthetic explain the options of a class."
    )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options of `fit`, and those of the processes."""
        super().add_arguments_to_parser(parser)
        parser.add_argument(
            "--servers", type=int | None, default=None, help="server processes; as many as trainer.cloud.servers"
        )
        parser.add_argument(
            "--clients",
            type=int | None,
            default=None,
            help="client processes, among which each server's clients are divided; one for each server unless given",
        )
        parser.add_argument(
            "--pace",
            type=Literal["replay", "real"],
            default="replay",
            help="replay: servers step as trainer.clock says, with fit's numbers; real: as soon as they are done",
        )
        parser.add_argument("--port", type=int, default=0, help="port of the coordinator; a free one unless given")
        parser.add_argument(
            "--timeout",
            type=float,
            default=600.0,
            help="seconds without a message after which a process is given up",
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse, and check the options of the processes."""
        super().parse_arguments(parser, args)
        for name in ("servers", "clients"):
            count = self.config[name]
            require(count is None or count >= 1, f"--{name} is {count}; give 1 or more, or leave it out.")
        port, timeout = self.config.port, self.config.timeout
        require(0 <= port < 2**16, f"--port is {port}; give a number from 1 to 65535, or leave it out.")
        require(0 < timeout < float("inf"), f"--timeout is {timeout}; give seconds above 0.")

    def default_name(self, config: dict[str, Any]) -> str:
        """The folder beside that of the same run in one process."""
        return f"{super().default_name(config)}-processes"


class PartCLI(CloudCLI):
    """The command line of a server's or client's process. It writes nothing: the coordinator does."""

    def instantiate_trainer(self, **kwargs: Any) -> FederatedTrainer:
        """A trainer without folder and loggers, and without callbacks that only watch."""
        quiet = {"run": None, "resume": False, "overwrite": False, "logger": False, "enable_progress_bar": False}
        trainer = LightningCLI.instantiate_trainer(self, **quiet, max_time=None, profiler=None, **kwargs)
        assert isinstance(trainer, FederatedTrainer)
        trainer.callbacks = [one for one in trainer.callbacks if isinstance(one, ServerCallback) and one.decides]
        trainer.initial_weights = "net"  # the coordinator sends the weights
        return trainer
