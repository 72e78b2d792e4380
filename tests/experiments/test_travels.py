"""What travels between server and nodes: read off the declarations, as the page of the docs has it."""

from functools import partial
from pathlib import Path

import pytest

import fedlit
from fedlit import FedAvg, FedBC, FedBCD, Scaffold
from fedlit.client.base import Client
from fedlit.experiments.conformance.entries import ENTRIES
from fedlit.experiments.conformance.problem import TINY
from fedlit.experiments.conformance.travels import page, pair, told_by, travels_of
from fedlit.server.weights import ExpAlpha

PAGE = Path(fedlit.__file__).parents[1] / "docs" / "travels.md"
MODEL = 18
"""Numbers of the tiny net."""


@pytest.mark.parametrize(
    ("make", "down", "up", "stays", "numbers"),
    [
        (FedAvg, [], [], [], (MODEL, MODEL)),
        (partial(FedBC, start_from="local"), ["`dual`"], [], ["`local`"], (MODEL + 1, MODEL)),
        (Scaffold, ["`server_control`"], ["`control_change`"], ["`control`"], (2 * MODEL, 2 * MODEL)),
        (FedBCD, ["`penalty`"], [], ["`local`", "the local optimiser's state"], (MODEL + 1, MODEL)),
        (partial(FedAvg, keep_local="linear.bias"), [], [], ["`linear.bias` of the net"], (MODEL - 3, MODEL - 3)),
    ],
)
def test_declarations_say_what_travels(
    make: type[Client], down: list[str], up: list[str], stays: list[str], numbers: tuple[int, int]
) -> None:
    travels = travels_of(make(TINY.net()))
    assert (travels.down, travels.up, travels.stays, travels.declared) == (down, up, stays, numbers)


def test_risks_that_a_weighting_reads_go_up() -> None:
    client = FedAvg(TINY.net())
    told = told_by(client, {"weights": ExpAlpha()})
    assert travels_of(client, told).declared == (MODEL, MODEL + 2)


def test_the_page_has_every_algorithm_with_what_it_declares() -> None:
    lines = PAGE.read_text().splitlines()
    for name, entry in ENTRIES.items():
        client = entry.make(TINY.net())
        if not client.pools_data:
            declared = pair(travels_of(client, told_by(client, entry.trainer)).declared)
            [line] = [line for line in lines if line.startswith(f"| {name} |")]
            assert line.endswith(f"| {declared} | {declared} |"), "fedlit conformance --travels docs/travels.md"


def test_the_page_is_written_with_what_was_counted() -> None:
    written = page({name: ENTRIES[name] for name in ("SCAFFOLD II", "centralised")})
    assert "| SCAFFOLD II | `server_control` | `control_change` | `control` | 36 / 36 | 36 / 36 |" in written
    assert "centralised" not in written, "nothing travels where one client has all data"
