"""`fedlit export`: plain state dicts that torch alone can load, equal to what the run holds."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedlit import Client, Ditto, FedAvg, FedBC, PerFedAvg
from tests.conftest import TINY, Answer, Call
from tests.problems import CLASSES, FEATURES, run, tiny_data, tiny_net

LOCAL = {"lr": 0.1, "batch_size": 4, "local_epochs": 1}


@pytest.mark.parametrize(
    ("client", "state"),
    [(FedBC(tiny_net(), **LOCAL), "local"), (Ditto(tiny_net(), **LOCAL), "personal")],
    ids=["FedBC", "Ditto"],
)
def test_models_are_those_of_the_run(tmp_path: Path, call: Call, client: Client, state: str) -> None:
    trainer = run(client, tiny_data(val_fraction=0.2), rounds=2, run=tmp_path / "run")
    answer = call(f"export {tmp_path / 'run'}")
    assert answer.code == 0, answer.err
    z, best, users = (
        torch.load(tmp_path / "run" / "export" / f"{name}.pt", weights_only=True)
        for name in ("global", "best", "personal")
    )
    net = tiny_net()
    net.load_state_dict(z)
    assert net.linear.weight.equal(trainer.loop.client.net.linear.weight)
    assert best["linear.weight"].equal(trainer.loop.best.model["linear.weight"])
    assert sorted(users) == sorted(trainer.loop.states.touched)
    for user, model in users.items():
        assert model["linear.bias"].equal(trainer.loop.states.row(f"{state}.linear.bias", user))
        net.load_state_dict(model)
    assert "weights_only=True" in answer.out


def test_what_each_user_keeps_is_put_into_the_servers_model(tmp_path: Path, call: Call) -> None:
    trainer = run(FedAvg(tiny_net(), keep_local="linear.bias", **LOCAL), rounds=2, run=tmp_path / "run")
    assert call(f"export {tmp_path / 'run'} --out {tmp_path / 'out'}").code == 0
    users = torch.load(tmp_path / "out" / "personal.pt", weights_only=True)
    for user, model in users.items():
        assert model["linear.bias"].equal(trainer.loop.states.row("own.linear.bias", user))
        assert model["linear.weight"].equal(trainer.loop.client.net.linear.weight)


def test_models_that_are_adapted_at_evaluation_are_said_to_be_exported_before(tmp_path: Path, call: Call) -> None:
    run(PerFedAvg(tiny_net(), adapt_lr=0.5, **LOCAL), rounds=1, run=tmp_path / "run")
    assert "before that step" in call(f"export {tmp_path / 'run'}").out


def test_without_kept_models_only_the_servers_is_written(tmp_path: Path, call: Call) -> None:
    run(FedAvg(tiny_net(), **LOCAL), rounds=1, run=tmp_path / "run", store_local_models=False)
    assert call(f"export {tmp_path / 'run'}").code == 0
    assert sorted(path.name for path in (tmp_path / "run" / "export").iterdir()) == ["global.pt"]


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path, call: Call) -> None:
    answer = call(f"export {tmp_path}")
    assert answer.code == 2
    assert "holds no checkpoint" in answer.err


OWN_NET = """\
from torch import nn


class Mine(nn.Module):
    def __init__(self, inputs: int = 60, hidden: int = 4):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, x):
        return self.layers(x)
"""


def example_of(answer: Answer) -> str:
    """The lines of Python that an answer ends with."""
    return answer.out.partition("To load them:")[2]


@pytest.mark.parametrize("net", ["", "--model.net exported_net.Mine --model.net.hidden 5"], ids=["fedlit's", "own"])
def test_the_example_runs(call: Call, workplace: Path, monkeypatch: pytest.MonkeyPatch, net: str) -> None:
    Path("exported_net.py").write_text(OWN_NET)
    monkeypatch.syspath_prepend(workplace)
    assert call(f"fit {TINY} {net}").code == 0
    names: dict[str, Any] = {}
    exec(example_of(call("export run")), names)
    z = torch.load("run/export/global.pt", weights_only=True)
    assert all(value.equal(z[name]) for name, value in names["net"].state_dict().items())
    assert set(names["users"]) <= set(range(4))


def test_the_example_of_a_net_from_python_says_what_only_its_author_knows(tmp_path: Path, call: Call) -> None:
    net = nn.Sequential(nn.Linear(FEATURES, CLASSES))
    run(FedAvg(net, **LOCAL), rounds=1, run=tmp_path / "run", store_local_models=False)
    example = example_of(call(f"export {tmp_path / 'run'}"))
    assert "from torch.nn.modules.container import Sequential\n" in example
    assert "net = Sequential(…)  # with the arguments that you gave it\n" in example
    assert "personal.pt" not in example, "it was not written"
