"""What people train now, in turns in one command: `python -m benchmarks.finetuning`. Client steps per second.

Adapters on a shared base beside a loop over users, recurrent layers beside the sequential engine, and a frozen backbone
with its outputs kept beside the same rounds without. All entries may use every core.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn

from benchmarks.__main__ import table
from benchmarks.handwritten import Data, epochs, weighted_average
from benchmarks.measure import Entry, Span, cores_for, engine_entry, in_rounds, measure
from benchmarks.workloads import Workload
from fedlit import CharLSTM, CharTransformer, FedAvg, LeNet, LoRA, TensorData
from fedlit.client.base import Client
from fedlit.data.base import FederatedDataModule
from fedlit.engines.backbone import installed

LETTERS, LENGTH = 80, 80
Report = Callable[[str], None]


@dataclass(frozen=True)
class Work:
    """Rounds that are done in several ways; the first is the one to compare with."""

    title: str
    entries: Callable[[Report], list[Entry]]


def workload(net: Callable[[], nn.Module], clients: int, batch_size: int, local_epochs: int = 1) -> Workload:
    """Two batches for each of so many clients, who are all in every round."""
    sizes = (2 * batch_size,) * clients
    return Workload("", "", net, (LENGTH,), sizes, batch_size, local_epochs, clients_per_round=clients)


def texts(work: Workload, *, every_position: bool) -> TensorData:
    """Random letters; the next one is to be guessed after the text, or after each of its letters."""
    rng, count = np.random.default_rng(0), sum(work.sizes)
    x, y = (rng.integers(LETTERS, size=(count, LENGTH)) for _ in range(2))
    owners = np.repeat(np.arange(len(work.sizes)), work.sizes)
    classes = {} if every_position else {"num_classes": LETTERS}
    target = y if every_position else y[:, 0]
    return TensorData(x, target, owners, num_tokens=LETTERS, test_fraction=0.0, val_fraction=0.0, **classes)


# ---- adapters --------------------------------------------------------------------------------------------------------


def adapted() -> nn.Module:
    """A character transformer of 0.8 million frozen parameters, with adapters of rank 4 in its blocks."""
    return LoRA(CharTransformer(LETTERS, every_position=True), rank=4, targets="blocks")


def adapters(batch_size: int, report: Report) -> list[Entry]:
    """FedAvg of adapters: a loop over ten users, and the vectorized engine."""
    work = workload(adapted, 10, batch_size)
    data = texts(work, every_position=True)
    data.setup()
    cores = cores_for(work)
    report("first round: a loop over users")
    net, samples, users = adapted(), (data.store["x"], data.store["y"]), data.everyone.train
    round_by_hand = in_rounds(lambda: round_of_adapters(net, samples, list(users), work), threads=cores)
    first = round_by_hand(0)
    by_hand = Entry("by hand", cores, 1, False, first.round_s, round_by_hand)
    report("first round, which compiles: vectorized")
    client = FedAvg(adapted(), task="next_token", lr=work.lr, batch_size=batch_size)
    return [by_hand, engine_entry("vectorized", work, data, client, "vectorized", cores)]


def round_of_adapters(net: nn.Module, data: Data, users: list[torch.Tensor], work: Workload) -> int:
    """One round of plain PyTorch: every user trains the adapters alone; returns the steps that were taken."""
    own = [value for value in net.parameters() if value.requires_grad]
    received = [value.detach().clone() for value in own]
    moved: list[list[torch.Tensor]] = []
    steps = 0
    for rows in users:
        put(own, received)
        optimizer = torch.optim.SGD(own, lr=work.lr)
        for x, y in epochs(data, rows, work.batch_size, work.local_epochs):
            optimizer.zero_grad()
            F.cross_entropy(net(x.long()).flatten(0, 1), y.flatten()).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            steps += 1
        moved.append([value.detach().clone() for value in own])
    sizes = [len(rows) for rows in users]
    put(own, [weighted_average(values, sizes) for values in zip(*moved, strict=True)])
    return steps


def put(own: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Copy values into parameters."""
    with torch.no_grad():
        for value, new in zip(own, values, strict=True):
            value.copy_(new)


# ---- recurrent layers ------------------------------------------------------------------------------------------------


def recurrent(batch_size: int, report: Report) -> list[Entry]:
    """CharLSTM in torch's own layers, with threads inside them, and compiled, with a worker for each core."""
    work = workload(lambda: CharLSTM(LETTERS), 8, batch_size)
    data = texts(work, every_position=False)
    data.setup()
    return [engine_of(name, work, data, work.client(), report) for name in ("sequential", "vectorized")]


def engine_of(name: str, work: Workload, data: FederatedDataModule, client: Client, report: Report) -> Entry:
    """One of the engines, with every core."""
    report(f"first round: {name}")
    if name == "sequential":
        return engine_entry(name, work, data, client, "sequential", None)
    return engine_entry(name, work, data, client, "vectorized", cores_for(work))


# ---- a frozen backbone -----------------------------------------------------------------------------------------------


class Headed(nn.Module):
    """LeNet's layers but the last as a backbone, and a linear layer as its head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = LeNet(), nn.Linear(84, 10)
        self.backbone.fc3 = nn.Identity()  # type: ignore[assignment]  # what the head is for

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (rows, 10) of pictures (rows, 3, 32, 32)."""
        logits: torch.Tensor = self.head(self.backbone(x))
        return logits


def frozen_backbone(engine: str, report: Report) -> list[Entry]:
    """Ten local epochs of a head, without and with the backbone's outputs kept."""
    work = replace(workload(Headed, 10, 20, local_epochs=10), sizes=(100,) * 10, sample_shape=(3, 32, 32))
    entries = []
    for name, cache in (("without", None), ("kept", "backbone")):
        data = work.data()
        data.setup()
        client = FedAvg(Headed(), **work.local, train="head", cache=cache)
        entry = engine_of(engine, work, data, client, report)
        entries.append(replace(entry, name=name, run=with_outputs(entry.run, client, data)))
    return entries


def with_outputs(run: Callable[[float], Span], client: Client, data: FederatedDataModule) -> Callable[[float], Span]:
    """The same rounds, in which the data give the outputs that the client keeps, if any."""

    def run_with(seconds: float) -> Span:
        with installed(client, data, None):
            return run(seconds)

    return run_with


# ---- the command -----------------------------------------------------------------------------------------------------

TITLES = "LoRA of rank 4 on a transformer of 0.8 M, 10 users, batches of {} × 80"
WORK = {
    "adapters-16": Work(TITLES.format(16), lambda report: adapters(16, report)),
    "adapters-4": Work(TITLES.format(4), lambda report: adapters(4, report)),
    "lstm-10": Work("CharLSTM, 8 users, batches of 10 × 80", lambda report: recurrent(10, report)),
    "lstm-20": Work("CharLSTM, 8 users, batches of 20 × 80", lambda report: recurrent(20, report)),
    "backbone": Work("head on LeNet, 10 epochs, batch 20", lambda report: frozen_backbone("sequential", report)),
    "backbone-compiled": Work("the same compiled", lambda report: frozen_backbone("vectorized", report)),
}


def main() -> None:
    """A table for each work: medians of steps per second, and the ratio to its first entry."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.finetuning", description=__doc__)
    parser.add_argument("--work", action="append", choices=WORK, help="what to measure, repeatable; all unless given")
    parser.add_argument("--repeats", type=int, default=5, help="repetitions, in turns")
    parser.add_argument("--seconds", type=float, default=1.5, help="time of each entry in a repetition")
    args = parser.parse_args()

    def report(what: str) -> None:
        sys.stderr.write(f"{what}\n")

    console = Console(width=100)
    warm = {name: WORK[name].entries(report) for name in args.work or WORK}
    for name, entries in warm.items():
        console.print(f"{name}: {WORK[name].title}", highlight=False)
        console.print(table(measure(entries, args.repeats, args.seconds, lambda _: None)))


if __name__ == "__main__":
    main()
