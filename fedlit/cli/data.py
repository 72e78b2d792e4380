"""`fedlit data`: builds the data of a config, prints the partition and saves it; trains nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jsonargparse import Namespace
from pytorch_lightning import seed_everything
from pytorch_lightning.cli import LightningArgumentParser
from rich.console import Console
from rich.table import Table

from fedlit.cli.data_export import export
from fedlit.config.files import resolve_configs
from fedlit.config.fit_cli import FitCLI, plain_refusals
from fedlit.data.base import FederatedDataModule
from fedlit.data.partition_plot import draw_partition
from fedlit.files import writing
from fedlit.metrics.formatting import counted
from fedlit.metrics.user_scores import gini
from fedlit.results.folder import RunFolder, chosen_by
from fedlit.trainer.trainer import quiet_lightning

_MOST_ROWS = 40
_ROWS_AT_EACH_END = 10
_LEAST_WIDTH = 20  # of the class counts

Client = dict[str, Any]  # what `FederatedDataModule.describe` says of a client


class DataCLI(FitCLI):
    """The command line of `fit`, which takes the same configs; only the data are made of it."""

    command = "data"
    description = (
        "Show who holds which samples, and save partition.json and partition.png. Takes what fit takes; trainer, model "
        "and run change nothing here. --data.help Synthetic explains the options of a class."
    )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Those of `fit`, and where to save."""
        super().add_arguments_to_parser(parser)
        parser.add_argument(
            "--out",
            type=str | None,
            default=None,
            metavar="DIR",
            help="folder of partition.json and partition.png; partition/<data>-<hash> unless given",
        )

    def instantiate_classes(self) -> None:
        """The data alone: a logger or a callback may write when it is made."""
        with plain_refusals():
            only = Namespace(data=self.config.data)  # type: ignore[no-untyped-call]  # jsonargparse's has no types
            self.datamodule = self.parser.instantiate(only).data


def show_data(arguments: list[str]) -> int:
    """Build, save, print; `fedlit data export` writes a file for each client instead."""
    if arguments[:1] == ["export"]:
        return export(arguments[1:])
    quiet_lightning()
    cli = DataCLI(resolve_configs(arguments))
    data = cli.datamodule
    assert isinstance(data, FederatedDataModule)
    seed_everything(cli.config.seed_everything, workers=False, verbose=False)  # where the trainer does it in a run
    data.prepare_data()
    data.setup("fit")
    described = data.describe()
    default = Path("partition") / f"{described['name']}-{described['hash'][:8]}".lower()  # configs share no folder
    folder = save(described, Path(cli.config.out or default))
    console = Console(markup=False, emoji=False, highlight=False)  # a group may be called [red] or :one:
    for line in headlines(data, described):
        console.print(line, soft_wrap=True)
    console.print(client_table(described["clients"], console.width))
    console.print(f"saved: {folder.partition} and {folder.partition_picture.name}", soft_wrap=True)
    return 0


def save(described: dict[str, Any], path: Path) -> RunFolder:
    """Both files under the names that they have in a run folder, each replaced as a whole."""
    folder = RunFolder(path)
    with chosen_by("--out DIR", path):
        path.mkdir(parents=True, exist_ok=True)
        folder.write_partition(described)
        with writing(folder.partition_picture) as draft:
            draw_partition(described, draft)
    return folder


def headlines(data: FederatedDataModule, described: dict[str, Any]) -> list[str]:
    """The partition as a whole."""
    clients = described["clients"]
    train, val, test = (sum(client[part] for client in clients) for part in ("train", "val", "test"))
    sizes = data.sizes.numpy()
    classes = f"{described['num_classes']} classes, " if data.is_labelled else ""
    lines = [
        f"{described['name']}: {counted(len(clients), 'client')}, {classes}"
        f"{train:,} training, {val:,} validation and {test:,} test samples; "
        f"data seed {described['seed']}, partition {described['hash']}",
        f"training samples of a client: {sizes.min():,} to {sizes.max():,}, median {np.median(sizes):,.0f}, "
        f"Gini {gini(data.sizes):.2f}",
    ]
    if (len(data.global_val), len(data.global_test)) != (val, test):  # official tests, or clients that share rows
        lines.append(f"global model: {len(data.global_val):,} validation and {len(data.global_test):,} test samples")
    if data.newcomer_data is not None:
        held_back = data.newcomer_data.num_clients - data.num_clients
        lines.append(f"held back: {counted(held_back, 'newcomer')}, with the numbers from {data.num_clients} on")
    if data.is_fresh:
        lines.append("Clients are drawn anew every round; these are round 1's.")
    return lines


def client_table(clients: Sequence[Client], width: int) -> Table:
    """A row for each client; of many the largest and the smallest. A narrow terminal shortens groups and counts."""
    columns = [part for part in ("group", "train", "val", "test", "adapt") if any(part in client for client in clients)]
    chosen = shown_clients([client["train"] for client in clients])
    rows = [[str(k), *(cell(clients[k], part, width // 5) for part in columns)] for k in chosen]
    headings = ["client", *columns]
    if is_labelled := "classes" in clients[0]:
        rows = [[*row, str(held(clients[k]))] for k, row in zip(chosen, rows, strict=True)]
        headings = [*headings, "classes"]
    used = 2 + sum(2 + max(map(len, column)) for column in zip(headings, *rows, strict=True))
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in headings:
        is_text = heading == "group"
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=not is_text)
    if is_labelled:
        table.add_column("class:samples")
    for position, (k, row) in enumerate(zip(chosen, rows, strict=True)):
        if len(chosen) < len(clients) and position == _ROWS_AT_EACH_END:
            more = f"… {len(clients) - len(chosen):,} more …"
            table.add_row("…", *("" for _ in headings[1:]), *([more] if is_labelled else []))
        counts = [class_counts(clients[k]["classes"], max(_LEAST_WIDTH, width - used))] if is_labelled else []
        table.add_row(*row, *counts)
    return table


def shown_clients(sizes: list[int]) -> list[int]:
    """All ids in order, or those of the largest and the smallest, by size."""
    if len(sizes) <= _MOST_ROWS:
        return list(range(len(sizes)))
    by_size = sorted(range(len(sizes)), key=lambda client: -sizes[client])
    return by_size[:_ROWS_AT_EACH_END] + by_size[-_ROWS_AT_EACH_END:]


def cell(client: Client, part: str, longest: int) -> str:
    """One entry of the table; `longest` is the most that a group may take."""
    if part != "group":
        return f"{client.get(part, 0):,}"
    group: str = client.get("group", "")
    return group if len(group) <= longest else f"{group[: longest - 1]}…"


def held(client: Client) -> int:
    """The number of classes that a client trains on."""
    return sum(count > 0 for count in client["classes"])


def class_counts(counts: Sequence[int], width: int) -> str:
    """`3:120 7:45 +8`: classes with their samples from the most frequent on, and how many more did not fit."""
    order = sorted((label for label, count in enumerate(counts) if count), key=lambda label: -counts[label])
    entries = [f"{label}:{counts[label]}" for label in order]
    for fitting in range(len(entries), 0, -1):
        rest = [f"+{len(entries) - fitting}"] if fitting < len(entries) else []
        text = " ".join(entries[:fitting] + rest)
        if len(text) <= width:
            return text
    return f"+{len(entries)}" if entries else "none"
