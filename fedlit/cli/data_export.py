"""`fedlit data export`: the data of a config as one file for each client, for nodes."""

import re
from pathlib import Path

from jsonargparse import Namespace
from pytorch_lightning import seed_everything
from pytorch_lightning.cli import LightningArgumentParser
from rich.console import Console

from fedlit.config.files import resolve_configs
from fedlit.config.fit_cli import FitCLI, plain_refusals
from fedlit.data.base import FederatedDataModule
from fedlit.data.client_file import write_client_file
from fedlit.errors import require
from fedlit.metrics.formatting import counted
from fedlit.results.folder import chosen_by
from fedlit.trainer.trainer import quiet_lightning


class ExportCLI(FitCLI):
    """The command line of `fit`, which takes the same configs; only the data are made of it."""

    command = "data export"
    description = (
        "Write the data of a config as one .npz file for each client, which fedlit flower node reads. Takes what fit "
        "takes; trainer, model and run change nothing here."
    )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Those of `fit`, and where to write."""
        super().add_arguments_to_parser(parser)
        parser.add_argument("--out", type=str, required=True, metavar="DIR", help="folder of the files")

    def instantiate_classes(self) -> None:
        """The data alone."""
        with plain_refusals():
            only = Namespace(data=self.config.data)  # type: ignore[no-untyped-call]  # jsonargparse's has no types
            self.datamodule = self.parser.instantiate(only).data


def export(arguments: list[str]) -> int:
    """Build the data, and write a file for each client."""
    quiet_lightning()
    cli = ExportCLI(resolve_configs(arguments))
    data = cli.datamodule
    assert isinstance(data, FederatedDataModule)
    files = export_clients(data, cli.config.seed_everything, Path(cli.config.out))
    size = sum(file.stat().st_size for file in files) / 1e6
    console = Console(markup=False, emoji=False, highlight=False)
    console.print(f"{counted(len(files), 'file')}, {size:,.1f} MB: {files[0]} … {files[-1].name}", soft_wrap=True)
    return 0


def export_clients(data: FederatedDataModule, seed: int, folder: Path) -> list[Path]:
    """Write all clients' files; returns them in the order of the clients."""
    seed_everything(seed, workers=False, verbose=False)  # where the trainer does it in a run
    data.prepare_data()
    data.setup("fit")
    check_exported(data)
    with chosen_by("--out DIR", folder):
        folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}.npz" for name in names_of_clients(data)]
    for client, file in enumerate(files):
        write_client_file(file, data, client)
    return files


def check_exported(data: FederatedDataModule) -> None:
    """ConfigError for data that a file for each client cannot hold."""
    name = type(data).__name__
    require(
        not data.is_fresh,
        f"data is {name} with clients that are drawn anew in every round (data.fresh), so there is no file for each. "
        "Leave data.fresh out.",
    )
    require(
        data.vary is None,
        f"data is {name} with samples that are changed at random in every batch, which a file cannot hold. Leave the "
        "augmentation out.",
    )
    require(
        data.newcomer_data is None,
        f"data.newcomers is {data.newcomers}, but who is held back is decided by who runs a node. Leave it out.",
    )


def names_of_clients(data: FederatedDataModule) -> list[str]:
    """A name for each client's file, whose sorted order is that of the clients."""
    width = len(str(data.num_clients - 1))
    own = [re.sub(r"[^\w-]", "-", str(name)) for name in data.client_names]
    if len(own) != data.num_clients:
        own = [""] * data.num_clients
    return [f"client-{client:0{width}d}{'-' * bool(name)}{name}" for client, name in enumerate(own)]
