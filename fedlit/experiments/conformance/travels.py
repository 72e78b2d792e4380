"""What travels between a server and a client's node, and what stays: read off the declarations, and measured."""

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedlit.client.base import Client
from fedlit.client.specs import Lives, lives_of, sent_values
from fedlit.experiments.conformance.checks import new
from fedlit.experiments.conformance.entries import ENTRIES, Entry
from fedlit.experiments.conformance.federation import federated
from fedlit.experiments.conformance.problem import TINY
from fedlit.server.weights import find_weighting

HEADER = """# What travels, and what stays

Written by `fedlit conformance --travels`: what each algorithm declares (`state_spec`, `sent_spec`, `report_spec`), and
how many numbers a node was sent and sent back in a round, counted on the link of a federation of four nodes. The net is
softmax regression with {model} numbers. *Declared* is `traffic()` with what the weighting reads, without n_i, which is
told before the first round.

Beside these numbers, a message has up to {down:,} bytes down and {up:,} bytes up of names, shapes and round numbers. A
client's first round may add z⁰ and the tensors that it keeps; an evaluation sends z, and brings back sums of measures.
"""
_COLUMNS = ("algorithm", "down, beside z", "up, beside x_i", "stays with the client", "declared", "measured")


@dataclass(frozen=True)
class Travels:
    """What an algorithm sends and keeps."""

    down: list[str]
    up: list[str]
    stays: list[str]
    declared: tuple[int, int]


def travels_of(client: Client, told: Iterable[str] = ()) -> Travels:
    """What an algorithm declares; `told` are the risks that its weighting reads."""
    kept, reported = client.state_spec(), client.report_spec()
    lives = lives_of(kept)
    risks = sorted(told)
    stays = [f"`{name}`" for name, place in lives.items() if place is not Lives.SERVER]
    stays += [f"`{name}` of the net" for name in sorted(client.local_tensors)]
    stays += ["the local optimiser's state"] if client.keep_optimizer else []
    down, up = client.traffic()
    return Travels(
        down=[f"`{name}`" for name in (*sent_values(kept), *client.sent_spec())],
        up=[f"`{name}`" for name in (*reported, *risks)],
        stays=stays,
        declared=(down, up - 1 + len(risks)),
    )


def told_by(client: Client, trainer: Mapping[str, Any]) -> frozenset[str]:
    """The risks that the weighting or a callback of the algorithm reads."""
    weighting = find_weighting(trainer.get("weights") or client.weighting())
    return weighting.needs.union(*(callback.needs for callback in client.server_callbacks()))


def measured(entry: Entry) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """(the numbers of each exchange, bytes beside the numbers of one exchange each way) of a run with nodes."""
    with tempfile.TemporaryDirectory() as folder:
        run = federated(partial(new, entry.make), TINY, Path(folder), **entry.trainer)
    return run.link.numbers, run.link.overhead()


def page(entries: Mapping[str, Entry] = ENTRIES) -> str:
    """The table as Markdown."""
    rows, beside = [], (0, 0)
    apart = {name: entry for name, entry in entries.items() if not new(entry.make).pools_data}
    for name, entry in apart.items():
        client = new(entry.make)
        travels = travels_of(client, told_by(client, entry.trainer))
        counted, overhead = measured(entry)
        beside = (max(beside[0], overhead[0]), max(beside[1], overhead[1]))
        cells = [", ".join(names) or "–" for names in (travels.down, travels.up, travels.stays)]
        shown = " ".join(sorted({pair(numbers) for numbers in counted}))
        rows.append([name, *cells, pair(travels.declared), shown])
    model = new(ENTRIES["FedAvg"].make).model_numbers
    lines = [f"| {' | '.join(row)} |" for row in (_COLUMNS, ["---"] * len(_COLUMNS), *rows)]
    return "\n".join([HEADER.format(model=model, down=beside[0], up=beside[1]), *lines]) + "\n"


def pair(numbers: tuple[int, int]) -> str:
    """`18 / 18`."""
    return f"{numbers[0]} / {numbers[1]}"
