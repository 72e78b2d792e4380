"""Laws of computed data: a sample follows from its row number, in every program; nothing else is stored."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedlit import FedAvg, FederatedTrainer, Generated, Softmax
from fedlit.engines.compiler import compile_program
from fedlit.errors import ConfigError
from tests.problems import traced_program


def ready(**options: Any) -> Generated:
    data = Generated(**({"num_clients": 40, "samples_per_client": 25, "shape": [2, 5]} | options))
    data.setup()
    return data


def test_a_sample_follows_from_its_row_number_alone() -> None:
    data = ready()
    rows = torch.tensor([7, 999, 7, 0])
    x, y = data.rows(data.store, rows)
    alone = [data.rows(data.store, row[None]) for row in rows]
    assert torch.equal(x, torch.cat([one for one, _ in alone]))
    assert torch.equal(y, torch.cat([label for _, label in alone]))
    assert x.shape == (4, 2, 5)
    assert not torch.equal(x[0], ready(seed=1).rows(data.store, rows)[0][0])


def test_noise_is_normal_and_independent() -> None:
    data = ready()
    x, y = data.rows(data.store, torch.arange(1000))
    noise = (x - data.store["x"][y]).reshape(1000, 10).double()
    assert noise.mean().abs() < 0.03
    assert (noise.std() - 1).abs() < 0.03
    assert (noise**4).mean() == pytest.approx(3, abs=0.25)
    assert (torch.corrcoef(noise.T) - torch.eye(10)).abs().max() < 0.15


def test_a_client_has_its_classes_and_all_classes_occur() -> None:
    clients = ready(classes_per_client=3).describe()["clients"]
    counts = np.array([client["classes"] for client in clients])
    assert ((counts > 0).sum(1) <= 3).all()
    assert (counts.sum(0) > 0).all()


@pytest.mark.parametrize("build", [traced_program, pytest.param(compile_program, marks=pytest.mark.slow)])
def test_a_program_computes_the_same_samples(build: Callable[..., Any]) -> None:
    """Compiling it takes half a minute; tests/engines/test_dropout.py compiles a hash like this one."""
    data = ready()
    rows = torch.arange(0, 1000, 7)
    given = [rows, data.store["x"]]
    x, y = build(lambda index, means: data.rows({"x": means}, index), given)(*given)
    assert torch.equal(y, data.labels(data.store, rows))
    assert (x - data.rows(data.store, rows)[0]).abs().max() < 1e-6


def test_it_can_be_learned() -> None:
    trainer = FederatedTrainer(rounds=5, clients_per_round=10, engine="sequential", enable_progress_bar=False)
    trainer.fit(FedAvg(Softmax(10, 10), lr=0.1, local_epochs=1), datamodule=ready(noise=0.3))
    _, accuracies = trainer.loop.history.series("global/acc")
    assert accuracies[-1] > accuracies[0] + 0.2


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"num_clients": 0}, "data.num_clients is 0"),
        ({"shape": []}, r"data.shape is \[\]"),
        ({"classes_per_client": 11}, "data.classes_per_client is 11"),
        ({"noise": float("nan")}, "data.noise is nan"),
        ({"num_clients": 2**31, "samples_per_client": 4}, "Rows are numbered up to"),
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        Generated(**options)
