"""Laws of initial weights from a file: they are what a run begins with, or the file is refused with the reason."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from fedlit import FedAvg, FederatedTrainer, Softmax
from fedlit.client.weights_file import WeightsFile
from fedlit.errors import ConfigError, FedlitError
from tests.problems import CLASSES, FEATURES, tiny_data, tiny_net


def saved(path: Path, content: Any) -> str:
    torch.save(content, path)
    return str(path)


def begun(init_from: str, **trainer: Any) -> FederatedTrainer:
    options = {"rounds": 1, "clients_per_round": 2, "engine": "sequential", "enable_progress_bar": False} | trainer
    found = FederatedTrainer(**options)
    found.fit(FedAvg(Softmax(FEATURES, CLASSES), init_from=init_from, lr=0.1), datamodule=tiny_data())
    return found


STATE = tiny_net(seed=9).float().state_dict()


@pytest.mark.parametrize(
    "content",
    [STATE, {"state_dict": {f"net.{name}": value for name, value in STATE.items()}}, {"model": STATE, "round": 3}],
    ids=["state dict", "checkpoint", "best.ckpt"],
)
def test_a_run_begins_with_the_weights_of_the_file(content: Any, tmp_path: Path) -> None:
    trainer = begun(saved(tmp_path / "start.pt", content))
    for name, value in trainer.loop.server.initial.items():
        assert torch.equal(value, STATE[name])


def test_a_run_of_the_command_line_goes_on_from_another(workplace: Path) -> None:
    from fedlit.cli import main

    fast = "--trainer.rounds 1 --trainer.engine sequential --trainer.enable_progress_bar false --data.limit 20"
    base = f"fit --config synthetic_fedavg {fast} --wandb disabled"
    for more in ("--run first", "--run second --model.init_from first/checkpoints/last.ckpt"):
        with pytest.raises(SystemExit) as ended:
            main.main(f"{base} {more}".split())
        assert ended.value.code == 0
    first = (workplace / "first" / "metrics.csv").read_text().splitlines()
    second = (workplace / "second" / "metrics.csv").read_text().splitlines()
    place = first[0].split(",").index("global/loss")
    assert first[-1].split(",")[place] == second[1].split(",")[place]
    config = yaml.safe_load((workplace / "second" / "config.yaml").read_text())
    known = config["model"]["init_args"]["init_from"]
    assert known == WeightsFile("first/checkpoints/last.ckpt").known_by()
    with pytest.raises(SystemExit) as ended:  # the config of a run can be given again
        main.main(f"fit --config second/config.yaml {fast} --wandb disabled --run third".split())
    assert ended.value.code == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (STATE | {"more": torch.ones(1)}, r"it has 'more', which the net does not"),
        (STATE | {"linear.bias": torch.ones(7)}, r"'linear\.bias' has shape \(7,\) there and \(3,\) in the net"),
        (STATE | {"linear.bias": torch.full((3,), torch.nan)}, r"'linear\.bias' has NaN or infinite values"),
        ([1, 2], r"holds list without a state dict"),
        ({"rounds": 3}, r"holds dict without a state dict"),
    ],
)
def test_other_weights_are_refused_with_the_name(content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        begun(saved(tmp_path / "start.pt", content))


def test_a_file_may_hold_a_part_of_the_net_and_the_rest_is_named_and_drawn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = saved(tmp_path / "start.pt", {"linear.weight": STATE["linear.weight"]})
    with caplog.at_level("INFO"):
        first, second, third = (begun(path, seed=seed).loop.server.initial for seed in (1, 2, 1))
    assert torch.equal(first["linear.weight"], STATE["linear.weight"])
    assert torch.equal(first["linear.bias"], third["linear.bias"])
    assert not torch.equal(first["linear.bias"], second["linear.bias"])
    assert "not in it: linear.bias" in caplog.text
    assert "drawn from seed 1 (linear.bias)" in caplog.text


def test_a_file_may_hold_the_weights_of_one_module(tmp_path: Path) -> None:
    layer = {"weight": STATE["linear.weight"], "bias": STATE["linear.bias"]}
    net = Softmax(FEATURES, CLASSES)
    loaded = WeightsFile(saved(tmp_path / "layer.pt", layer)).load_into(net)
    assert loaded == {"linear.weight", "linear.bias"}
    assert torch.equal(net.linear.weight, STATE["linear.weight"])
    twins = nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.Linear(FEATURES, CLASSES))
    with pytest.raises(ConfigError, match=r"fits several parts of model\.net \(Sequential\): 0, 1\. .*'0\.weight'"):
        WeightsFile(str(tmp_path / "layer.pt")).load_into(twins)


def test_a_file_that_is_not_there_or_not_readable_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no file .*nothing\.pt"):
        begun(str(tmp_path / "nothing.pt"))
    with pytest.raises(ConfigError, match=r"cannot be read"):
        begun(str(tmp_path))
    (tmp_path / "text.pt").write_text("weights")
    with pytest.raises(ConfigError, match=r"text\.pt holds no weights that can be read: it is not an archive"):
        begun(str(tmp_path / "text.pt"))


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str, ...]]:
        return open, ("sprung", "w")


def test_nothing_of_a_file_is_run(workplace: Path) -> None:
    torch.save({"linear.weight": Trap()}, "trap.pt")
    Path("plain.pt").write_bytes(pickle.dumps(Trap()))
    for name in ("trap.pt", "plain.pt"):
        with pytest.raises(ConfigError, match="holds no weights that can be read"):
            begun(name)
    assert not Path("sprung").exists()


def test_another_content_is_another_run(tmp_path: Path) -> None:
    file = saved(tmp_path / "start.pt", STATE)
    begun(file, run=tmp_path / "run")
    saved(tmp_path / "start.pt", {name: value + 1 for name, value in STATE.items()})
    with pytest.raises(FedlitError, match=r"other settings: model\.init_from\.sha256.*the file holds something else"):
        begun(file, run=tmp_path / "run", resume=True, rounds=2)


def test_a_fingerprint_of_another_content_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it is not the file that the run began with"):
        WeightsFile(saved(tmp_path / "start.pt", STATE), sha256="0" * 16).load_into(nn.Linear(1, 1))
