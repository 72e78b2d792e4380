"""Parts of the site that commands can write: the help of every command, and the figures of a tiny run."""

import contextlib
import io
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedlit import (
    Client,
    Clock,
    Cloud,
    FedAvg,
    FedBC,
    FedBCD,
    FederatedTrainer,
    FedProx,
    Latency,
    Softmax,
    Synthetic,
)
from fedlit.cli.main import COMMANDS, dispatch
from fedlit.report.figures.base import Figure
from fedlit.report.figures.draw import PLANS, draw_figures
from fedlit.results.runs import find_runs, group_runs


def make_pages(folder: Path) -> None:
    """Write commands.md, and, where they are not there yet, the figures with gallery.md."""
    folder.mkdir(exist_ok=True)
    (folder / "commands.md").write_text(commands())
    if not (folder / "gallery.md").exists():
        chapters = [chapter(study, figures_of(study, folder)) for study in STUDIES]
        (folder / "gallery.md").write_text("\n".join(chapters))


# ---- the command line ------------------------------------------------------------------------------------------------


def commands() -> str:
    """What `fedlit COMMAND --help` prints, command by command."""
    return "\n".join(f"## fedlit {name}\n\n```text\n{help_of(name)}\n```\n" for name in COMMANDS)


def help_of(command: str) -> str:
    """The text, 100 letters wide, as in a terminal."""
    said, before = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        dispatch([command, "--help"], ready=lambda: None)
    os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)
    return said.getvalue().strip()


# ---- the gallery -----------------------------------------------------------------------------------------------------

ROUNDS = 6
LOCAL: dict[str, Any] = {"lr": 0.05, "local_epochs": 1}
SWEPT = ("against_first_state", "swept_at_the_end", "swept_by_round")
SEARCHED = ("searched",)


def compared(folder: Path) -> None:
    """Three algorithms, two seeds each."""
    algorithms: dict[str, Callable[..., Client]] = {
        "fedavg": FedAvg,
        "fedprox": partial(FedProx, mu=1.0),
        "fedbc": partial(FedBC, dual_lr=0.1),
    }
    for name, algorithm in algorithms.items():
        for seed in range(2):
            trained(algorithm(Softmax(60, 10), **LOCAL), folder / f"{name}-{seed}", seed=seed)


def tolerances(folder: Path) -> None:
    """FedBC with two values of γ."""
    for gamma in (0.0, 0.1):
        client = FedBC(Softmax(60, 10), dual_lr=0.1, tolerance_init=gamma, tolerance_lr=0.0, **LOCAL)
        trained(client, folder / f"gamma-{gamma}")


def rates(folder: Path) -> None:
    """FedAvg with two learning rates."""
    for rate in (0.02, 0.1):
        trained(FedAvg(Softmax(60, 10), **(LOCAL | {"lr": rate})), folder / f"rate-{rate}")


def searched(folder: Path) -> None:
    """FedBC with every pair of a few rates."""
    for alpha in (1e-3, 1e-2, 1e-1):
        for rate in (0.02, 0.1):
            client = FedBC(Softmax(60, 10), **(LOCAL | {"lr": rate, "dual_lr": alpha}))
            trained(client, folder / f"alpha-{alpha}-rate-{rate}")


def populations(folder: Path) -> None:
    """FedAvg with two numbers of clients."""
    for count in (10, 30):
        trained(FedAvg(Softmax(60, 10), **LOCAL), folder / f"clients-{count}", clients=count)


def clouds(folder: Path) -> None:
    """Five servers that wait for one another, and five of which the first two step."""
    for first in (5, 2):
        cloud, clock = Cloud(servers=5, first=first), Clock(Latency())
        client = FedBCD(Softmax(60, 10), lr=0.05)
        trained(client, folder / f"first-{first}", cloud=cloud, clock=clock, clients_per_round=2, rounds=2 * ROUNDS)


@dataclass(frozen=True)
class Study:
    """Some runs, the command with which a reader makes the like, and the figures that are shown of them."""

    title: str
    command: str
    make: Callable[[Path], None]
    kinds: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of its folder."""
        return self.make.__name__


STUDIES = [
    Study(
        "Algorithms compared",
        "fedlit compare --configs synthetic_fedavg,synthetic_fedprox,synthetic_fedbc --seeds 3",
        compared,
        tuple(name for name in PLANS if name not in (*SWEPT, *SEARCHED)),
    ),
    Study(
        "FedBC's tolerance swept",
        "fedlit sweep synthetic_fedbc_gamma --out runs/gamma\nfedlit report runs/gamma",
        tolerances,
        SWEPT,
    ),
    Study(
        "Another option swept", "fedlit sweep synthetic_fedavg --out runs/rates\nfedlit report runs/rates", rates, SWEPT
    ),
    Study(
        "Two rates searched",
        "fedlit sweep synthetic_fedbc --out runs/search\nfedlit report runs/search",
        searched,
        SEARCHED,
    ),
    Study(
        "The number of clients",
        "for n in 10 30; do\n"
        "  fedlit fit --config synthetic_fedavg.yaml --data.num_clients $n --run runs/clients/$n\n"
        "done\nfedlit report runs/clients",
        populations,
        SWEPT[1:2],
    ),
    Study(
        "Several servers",
        "fedlit fit --config mnist_cloud_async_fedbcd.yaml --trainer.eval_every 1 --run runs/cloud\n"
        "fedlit report runs/cloud",
        clouds,
        ("accuracy_by_time", "consensus", "consensus_by_time", "server_accuracy", "timeline"),
    ),
]


class TwoKinds(Synthetic):
    """Synthetic data whose clients have a group each, for the figure that shows groups."""

    def build(self) -> Any:
        """As it is, with groups."""
        store, parts = super().build()
        return store, replace(parts, groups=["odd" if k % 2 else "even" for k in range(len(parts.clients))])


def trained(client: Client, run: Path, *, clients: int = 20, **options: Any) -> None:
    """A run that takes a second."""
    given: dict[str, Any] = {"rounds": ROUNDS, "clients_per_round": 6, "engine": "sequential", "run": run}
    trainer = FederatedTrainer(**(given | options), enable_progress_bar=False, overwrite=True)
    trainer.fit(client, datamodule=TwoKinds(num_clients=clients, size_mean=2.5, size_sigma=1.0, size_min=12))


def figures_of(study: Study, folder: Path) -> list[Figure]:
    """The study's runs and its figures."""
    with silence():
        study.make(folder / "runs" / study.name)
    groups = group_runs(find_runs([folder / "runs" / study.name]))
    return draw_figures(groups, folder / study.name, kinds=study.kinds)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Runs say nothing."""
    log = logging.getLogger("fedlit")
    before = log.level
    log.setLevel(logging.ERROR)
    yield
    log.setLevel(before)


def chapter(study: Study, figures: list[Figure]) -> str:
    """The study with its command, and each of its figures with its caption."""
    shown = [
        f"### {figure.title}\n\n![{figure.title}](made/{study.name}/{figure.name}.png)\n\n"
        f"`{figure.name}`: {figure.caption}\n"
        for figure in figures
    ]
    return "\n".join([f"## {study.title}\n\n```\n{study.command}\n```\n", *shown])
