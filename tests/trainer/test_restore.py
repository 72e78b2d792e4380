"""A run that is restored from its folder has the models and the numbers that it wrote, whatever it ran under."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedlit import (
    Buffer,
    Client,
    Clock,
    Cloud,
    Exponential,
    FedAvg,
    FedBC,
    FedBCD,
    FederatedTrainer,
    Latency,
    PerFedAvg,
    Softmax,
    Synthetic,
)
from fedlit.config.parts import parts_of
from fedlit.errors import RunError
from fedlit.results.runs import read_run
from fedlit.server.optimizers import SGD
from fedlit.trainer.restore import Restored
from tests.conftest import TINY, Call

CLOCK = Clock(Latency(arrival=Exponential(2.0), compute=Exponential(1.0)))
PROTOCOLS: dict[str, dict[str, Any]] = {
    "flat": {},
    "async": {"clock": CLOCK, "cloud": Cloud(servers=3, first=2), "sampler": "earliest"},
    "rigorous": {"clock": CLOCK, "cloud": Cloud(servers=3, first=2, protocol="rigorous", assign="random")},
    "buffer": {"clock": CLOCK, "buffer": Buffer(size=2, concurrency=4, discount="constant")},
}
LOCAL: dict[str, Any] = {"lr": 0.1, "batch_size": 5, "local_epochs": 2}
CLIENTS = {
    "PerFedAvg": lambda: PerFedAvg(Softmax(60, 10), adapt_lr=0.2, **LOCAL),
    "FedBC": lambda: FedBC(Softmax(60, 10), **LOCAL),
    "FedBCD": lambda: FedBCD(Softmax(60, 10), lr=0.1, batch_size=5, server_lr=0.5),
    "a head of one's own": lambda: FedAvg(Softmax(60, 10), keep_local="linear.bias", **LOCAL),
}


def data() -> Synthetic:
    return Synthetic(num_clients=9, size_sigma=0.0, size_mean=1.0, size_min=24)


def fitted(folder: Path, client: Client, **options: Any) -> FederatedTrainer:
    """Three rounds, so that some clients have not trained."""
    given: dict[str, Any] = {
        "clients_per_round": 2,
        "engine": "sequential",
        "rounds": 3,
        "server_optimizer": SGD(lr=0.5),
    }
    trainer = FederatedTrainer(run=folder, enable_progress_bar=False, **(given | options))
    trainer.fit(client, datamodule=data())
    return trainer


def rows_of_last_round(folder: Path, column: str) -> np.ndarray:
    table = read_run(folder).clients.to_pydict()
    return np.array([x for x, number in zip(table[column], table["round"], strict=True) if number == 3])


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", CLIENTS)
def test_every_user_is_measured_as_the_run_measured_it(tmp_path: Path, name: str, protocol: str) -> None:
    tuning = {"finetune_lr": [0.01, 0.1], "finetune_epochs": [1, 2]}
    trainer = fitted(tmp_path, CLIENTS[name](), **PROTOCOLS[protocol], **tuning)
    restored = Restored.of(tmp_path)
    parts = parts_of(restored)
    evaluator = restored.round_evaluator(parts.client, parts.data, parts.options)
    values, records = evaluator.evaluate(None, restored.model, restored.rounds)
    final = read_run(tmp_path).summary["final"]
    assert values == {key: pytest.approx(final[key], rel=1e-6) for key in values}
    assert {"local/acc", "personal/acc", "finetuned/acc", "finetuned/lr"} <= values.keys() <= final.keys()
    for column in ("acc_global", "acc_local", "acc_personal"):
        np.testing.assert_array_equal(records[column], rows_of_last_round(tmp_path, column))
    assert trainer.loop.rounds_done == restored.rounds


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", CLIENTS)
def test_the_personal_models_are_those_that_the_trainer_gives(tmp_path: Path, name: str, protocol: str) -> None:
    trainer = fitted(tmp_path, CLIENTS[name](), **PROTOCOLS[protocol])
    restored = Restored.of(tmp_path)
    parts = parts_of(restored)
    round_evaluator, models = restored.round_evaluator(parts.client, parts.data), restored.personal_models()
    assert sorted(models) == sorted(trainer.loop.states.touched)
    for user in range(parts.data.num_clients):
        net = trainer.personal_model(user).state_dict()
        assert all(torch.equal(value, net[key]) for key, value in round_evaluator.personal_model(user).items())
    for user, model in models.items():
        kept = trainer.loop.round_evaluator.models.personal(user)
        assert all(torch.equal(value, kept[key]) for key, value in model.items())


ASYNC = (
    " --data.num_clients 9 --trainer.cloud.servers 3 --trainer.cloud.first 2 --trainer.sampler earliest"
    " --trainer.clock.latency.arrival Exponential --trainer.clock.latency.arrival.mean 2"
    " --trainer.server_optimizer SGD --trainer.server_optimizer.lr 0.5"
)


@pytest.mark.parametrize("model", ["PerFedAvg --model.adapt_lr 0.2", "FedBC"])
def test_evaluate_of_a_cloud_finds_what_fit_wrote(call: Call, model: str) -> None:
    assert call(f"fit {TINY}{ASYNC} --model {model}").code == 0
    assert call("evaluate run --json now.json").code == 0
    now, final = json.loads(Path("now.json").read_text()), read_run(Path("run")).summary["final"]
    assert now == {name: pytest.approx(final[name], rel=1e-6) for name in now}
    assert "personal/acc" in now or "local/acc" in now


def test_evaluate_fine_tunes_as_its_options_say(call: Call) -> None:
    assert call(f"fit {TINY} --trainer.finetune_lr 0.5").code == 0
    final = read_run(Path("run")).summary["final"]
    assert call("evaluate run --json now.json").code == 0
    assert json.loads(Path("now.json").read_text())["finetuned/acc"] == pytest.approx(final["finetuned/acc"])
    answer = call("evaluate run --trainer.finetune_lr [0.0,0.1] --trainer.finetune_epochs 2 --json now.json")
    assert answer.code == 0, answer.err
    now = json.loads(Path("now.json").read_text())
    assert now["finetuned/lr"] in (0.0, 0.1)
    assert now["finetuned/epochs"] == 2
    answer = call("evaluate run --trainer.finetune_lr [0.1,1.0] --data.val_fraction 0 --data.test_fraction 0.1")
    assert "These are not the users of the run" in answer.out


def test_export_of_a_cloud_gives_each_user_the_model_of_its_own_server(call: Call) -> None:
    assert call(f"fit {TINY}{ASYNC} --model PerFedAvg").code == 0
    assert call("export run").code == 0
    users = torch.load("run/export/personal.pt", weights_only=True)
    servers = torch.load("run/checkpoints/last.ckpt", weights_only=True)["loops"]["fit_loop"]["federation"]["servers"]
    assert len(users) > 3
    for user, model in users.items():  # blocks of three
        assert all(torch.equal(value, servers[user // 3]["model"][name]) for name, value in model.items())


@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "bf16-mixed"])
def test_evaluate_measures_in_the_numbers_of_the_run(call: Call, precision: str) -> None:
    assert call(f"fit {TINY} --trainer.precision {precision}").code == 0
    answer = call("evaluate run --json now.json")
    assert answer.code == 0, answer.err
    now, final = json.loads(Path("now.json").read_text()), read_run(Path("run")).summary["final"]
    assert now == {name: pytest.approx(final[name], rel=1e-12) for name in now}


def test_a_clouds_folder_of_an_earlier_fedlit_says_what_to_do(tmp_path: Path) -> None:
    fitted(tmp_path, CLIENTS["PerFedAvg"](), **PROTOCOLS["async"])
    path = tmp_path / "checkpoints" / "last.ckpt"
    content = torch.load(path, weights_only=True)
    del content["loops"]["fit_loop"]["federation"]["clients"]
    torch.save(content, path)
    with pytest.raises(RunError, match="--trainer.rounds 4 --resume"):
        Restored.of(tmp_path).personal_models()
    fitted(tmp_path, CLIENTS["PerFedAvg"](), **PROTOCOLS["async"], rounds=4, resume=True)
    assert Restored.of(tmp_path).personal_models()
