"""Flat runs give the numbers that they gave before servers became objects of their own (recorded at commit 9b35b75).

Bits are compared on one machine only; across machines the last digit of a sum may differ, so 1e-12 is asked here.
FedBCD, FedBCD-I, FedBC from its own model and FedProx with stragglers were recorded after it: CHANGELOG says why
their numbers moved.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedlit.experiments.conformance.entries import ENTRIES
from fedlit.experiments.conformance.problem import LOCAL, new_trainer, tiny_data, tiny_net
from tests.cases import KINDS, slow_but

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "recorded_numbers.json").read_text())


@pytest.mark.parametrize("name", slow_but(KINDS, RECORDED))
def test_a_flat_run_gives_the_recorded_numbers(name: str) -> None:
    entry, recorded = ENTRIES[name], RECORDED[name]
    trainer = new_trainer(rounds=6, clients_per_round=3, eval_every=2, engine="sequential", **entry.trainer)
    trainer.fit(entry.make(tiny_net(), **LOCAL), datamodule=tiny_data())
    for parameter, values in recorded["z"].items():
        z = trainer.loop.server.z[parameter].flatten().numpy()
        np.testing.assert_allclose(z, values, rtol=1e-12, atol=1e-12)
    for metric, value in recorded["last"].items():
        assert trainer.loop.history.rows[-1][metric] == pytest.approx(value, rel=1e-12, abs=1e-12), metric


def test_every_algorithm_is_recorded() -> None:
    assert set(RECORDED) == set(ENTRIES)
