"""The command line as a user calls it: what it runs and writes, and how it refuses."""

import csv
import errno
import importlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

import fedlit
from fedlit import models
from fedlit.config.files import resolve_configs
from fedlit.config.fit_cli import FitCLI
from fedlit.errors import ConfigError
from fedlit.results.records import read_clients, read_metrics
from tests.conftest import SHIPPED, TINY, Call, files

Refusal = Callable[..., str]

RUN_FILES = {
    *("config.yaml", "metrics.csv", "clients.parquet", "summary.json", "partition.json", "partition.png"),
    *("log.txt", "checkpoints/last.ckpt", "checkpoints/previous.ckpt", "checkpoints/best.ckpt"),
}
SUMMARY_KEYS = {
    *("rounds", "finished", "final", "best", "rounds_to/0.40", "halftime/acc", "algorithm", "data", "seed", "engine"),
    *("lanes", "workers", "compiled", "why", "seconds", "personal", "partition_hash", "versions", "git_commit"),
}


def read_config(folder: str = "run") -> dict[str, Any]:
    config = yaml.safe_load(Path(folder, "config.yaml").read_text("utf-8"))
    assert isinstance(config, dict)
    return config


def rounds_in(checkpoint: str) -> int:
    rounds = torch.load(Path("run", "checkpoints", checkpoint), weights_only=True)["loops"]["fit_loop"]["rounds"]
    assert isinstance(rounds, int)
    return rounds


def folder_name(words: str) -> str:
    """The default run folder of a command, without running it."""
    folder = FitCLI(resolve_configs(words.split())).trainer.folder
    assert folder is not None
    return str(folder.path)


# what runs


@pytest.mark.parametrize("config", [path.name for path in SHIPPED if path.name.startswith("synthetic")])
def test_a_shipped_config_trains_and_writes_the_files_of_a_run(call: Call, config: str) -> None:
    small = "--data.num_clients 16 --data.limit 30 --model.local_steps 2"
    answer = call(f"fit --config {config} {small} --trainer.rounds 2 --trainer.checkpoint_every 1 --run run")
    assert answer.code == 0
    assert "run folder: run\n" in answer.out
    without_best = {"checkpoints/best.ckpt"} if config == "synthetic_local.yaml" else set()  # there is no global model
    assert set(files(Path("run"))) >= RUN_FILES - without_best
    assert read_config()["trainer"]["rounds"] == 2


@pytest.mark.parametrize(
    ("words", "place", "value"),
    [
        ("--model.lr 0.05", ("model", "init_args", "lr"), 0.05),
        ("--model.net.num_classes 11", ("model", "init_args", "net", "init_args", "num_classes"), 11),
        ("--trainer.engine auto", ("trainer", "engine"), "auto"),
        ("--trainer.weights uniform", ("trainer", "weights"), "uniform"),
        ("--trainer.server_optimizer.lr 0.5", ("trainer", "server_optimizer", "init_args", "lr"), 0.5),
        ("--data.num_clients 5", ("data", "init_args", "num_clients"), 5),
        ("--data.seed 7", ("data", "init_args", "seed"), 7),
        ("--seed_everything 3", ("seed_everything",), 3),
    ],
)
def test_an_override_reaches_the_run_and_its_config(call: Call, words: str, place: tuple[str, ...], value: Any) -> None:
    assert call(f"fit {TINY} {words}").code == 0
    found: Any = read_config()
    for name in place:
        found = found[name]
    assert found == value


@pytest.mark.parametrize("algorithm", ["FedAvg", "FedProx", "fedlit.FedAvg"])
def test_the_algorithm_can_be_switched_on_the_command_line(call: Call, algorithm: str) -> None:
    assert call(f"fit {TINY} --model {algorithm} --model.lr 0.02").code == 0
    config = read_config()["model"]
    assert config["class_path"] == f"fedlit.{algorithm.removeprefix('fedlit.')}"
    assert (config["init_args"]["lr"], config["init_args"]["momentum"]) == (0.02, 0.5), "shared options are kept"
    assert "dual_lr" not in config["init_args"]


def test_the_data_can_be_switched_on_the_command_line(
    call: Call, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workplace / "own_data.py").write_text(
        "import torch\nimport fedlit\n\n\n"
        "class Blocks(fedlit.TensorData):\n"
        "    def __init__(self, *, size: int = 8, seed: int = 0) -> None:\n"
        "        y = torch.arange(4 * size) % 10\n"
        "        super().__init__(torch.randn(4 * size, 60), y, torch.arange(4 * size) // size, num_classes=10)\n"
    )
    monkeypatch.syspath_prepend(workplace)
    assert call(f"fit {TINY} --data own_data.Blocks --data.size 6").code == 0
    assert read_config()["data"] == {"class_path": "own_data.Blocks", "init_args": {"size": 6, "seed": 0}}
    assert json.loads(Path("run/summary.json").read_text())["data"] == "Blocks"


def test_a_lightning_logger_and_callback_of_the_config_take_part(call: Call) -> None:
    words = "--trainer.logger CSVLogger --trainer.logger.save_dir logs --trainer.callbacks ModelCheckpoint "
    assert call(f"fit {TINY} {words} --trainer.callbacks.dirpath best --trainer.callbacks.monitor val/acc").code == 0
    with next(Path("logs").rglob("metrics.csv")).open() as lines:
        assert [row["step"] for row in csv.DictReader(lines)] == ["0", "1", "2", "3"]
    assert list(Path("best").glob("*.ckpt"))


def test_an_option_wins_over_a_config_that_comes_after_it(call: Call) -> None:
    printed = call("fit --trainer.rounds 7 -c synthetic_fedavg.yaml --model.lr 0.5 --print_config").out
    assert "\n  rounds: 7\n" in printed
    assert "\n    lr: 0.5\n" in printed


def test_printed_config_is_complete_and_makes_the_same_run(call: Call, workplace: Path) -> None:
    tiny = TINY.replace("--run run", "")
    printed = call(f"fit {tiny} --model.lr 0.07 --print_config")
    assert printed.code == 0
    assert yaml.safe_load(printed.out)["model"]["init_args"]["tolerance_uses"] == "old", "defaults are shown too"
    assert list(workplace.iterdir()) == []
    Path("mine.yaml").write_text(printed.out)
    assert folder_name("--config ./mine.yaml") == folder_name(f"{tiny} --model.lr 0.07")


def test_config_of_a_run_folder_makes_the_same_run(call: Call) -> None:
    assert call(f"fit {TINY}").code == 0
    assert call("fit --config run/config.yaml --run again").code == 0
    first, second = (read_clients(Path(folder)).drop_columns("loss") for folder in ("run", "again"))
    assert first.column("acc_global").equals(second.column("acc_global"))
    assert (
        read_metrics(Path("run/metrics.csv"))[-1]["global/loss"]
        == read_metrics(Path("again/metrics.csv"))[-1]["global/loss"]
    )


# the run folder


def test_default_folder_is_named_after_data_algorithm_seed_and_settings(call: Call) -> None:
    answer = call(f"fit {TINY.replace('--run run', '')} --seed_everything 5")
    (folder,) = Path("runs").iterdir()
    assert re.fullmatch(r"synthetic-fedbc-5-[0-9a-f]{8}", folder.name)
    assert f"run folder: {folder}\n" in answer.out


@pytest.mark.parametrize(
    "words",
    [
        "--trainer.rounds 7",
        "--trainer.engine vectorized",
        "--trainer.checkpoint_every 9",
        "--trainer.max_time 00:01:00:00",
    ],
)
def test_what_changes_no_result_keeps_the_folder(workplace: Path, words: str) -> None:
    assert folder_name(f"--config synthetic_fedbc.yaml {words}") == folder_name("--config synthetic_fedbc.yaml")


@pytest.mark.parametrize(
    "words", ["--model.lr 0.02", "--data.seed 1", "--trainer.clients_per_round 9", "--trainer.weights uniform"]
)
def test_what_changes_a_result_makes_another_folder(workplace: Path, words: str) -> None:
    assert folder_name(f"--config synthetic_fedbc.yaml {words}") != folder_name("--config synthetic_fedbc.yaml")


def test_metrics_have_a_row_per_round_and_the_initial_model_is_row_zero(call: Call) -> None:
    assert call(f"fit {TINY}").code == 0
    with Path("run/metrics.csv").open() as lines:
        table = csv.DictReader(lines)
        rows = list(table)
    assert table.fieldnames is not None
    assert table.fieldnames[0] == "round"
    assert [row["round"] for row in rows] == ["0", "1", "2", "3"]
    assert rows[0]["train/loss"] == "", "nothing is trained yet"
    assert all(row["global/acc"] for row in rows)


def test_cells_are_empty_on_rounds_that_are_not_evaluated(call: Call) -> None:
    assert call(f"fit {TINY} --trainer.rounds 5 --trainer.eval_every 2").code == 0
    rows = read_metrics(Path("run/metrics.csv"))
    assert [row["round"] for row in rows if "global/acc" in row] == [0, 2, 4, 5], "the last round is always evaluated"
    assert [row["round"] for row in rows if "train/loss" in row] == [1, 2, 3, 4, 5]


def test_clients_have_a_row_per_client_and_evaluated_round(call: Call) -> None:
    assert call(f"fit {TINY} --trainer.rounds 5 --trainer.eval_every 2").code == 0
    table = read_clients(Path("run"))
    expected = [(round, client) for round in (0, 2, 4, 5) for client in range(4)]
    assert list(zip(table["round"].to_pylist(), table["client"].to_pylist(), strict=True)) == expected
    trained = [sum(not math.isnan(w) for w in table["weight"].to_pylist()[i : i + 4]) for i in range(0, 16, 4)]
    assert trained == [0, 2, 2, 2], "a weight for each client of the round's cohort"


def test_summary_holds_results_engine_and_versions(call: Call) -> None:
    assert call(f"fit {TINY}").code == 0
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary.keys() >= SUMMARY_KEYS
    assert (summary["rounds"], summary["finished"], summary["engine"]) == (3, True, "sequential")
    assert (summary["algorithm"], summary["data"], summary["seed"]) == ("FedBC", "Synthetic", 0)
    assert summary["versions"].keys() >= {"python", "fedlit", "torch", "pytorch-lightning", "numpy"}
    last = read_metrics(Path("run/metrics.csv"))[-1]
    assert summary["final"]["global/acc"] == last["global/acc"]
    assert summary["best"]["val/acc"] == max(row["val/acc"] for row in read_metrics(Path("run/metrics.csv")))


def test_a_run_without_validation_data_has_no_validation_metrics_and_no_best_model(call: Call) -> None:
    assert call(f"fit {TINY} --data.val_fraction 0").code == 0
    assert "val/acc" not in Path("run/metrics.csv").read_text()
    assert "best" not in json.loads(Path("run/summary.json").read_text())
    assert not Path("run/checkpoints/best.ckpt").exists()


def test_overwrite_starts_anew(call: Call) -> None:
    assert call(f"fit {TINY}").code == 0
    assert call(f"fit {TINY} --trainer.rounds 2 --model.lr 0.02 --overwrite").code == 0
    assert [row["round"] for row in read_metrics(Path("run/metrics.csv"))] == [0, 1, 2]
    assert read_config()["model"]["init_args"]["lr"] == 0.02


# help


def options(text: str) -> dict[str, str]:
    """Option -> what help says about it, without its type and default."""
    found = re.findall(r"^  (-[^\n]*?)(?:\n {20,}|  +)([^\n]*)$", text, re.MULTILINE)
    return {option: re.sub(r"\((required, )?type: .*", "", said).strip() for option, said in found}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--help", ["--config", "--trainer.rounds", "--trainer.sampler", "--model", "--data", "--run", "--wandb"]),
        ("--model.help FedBC", ["--model.net", "--model.dual_lr", "--model.lr", "--model.drop_last"]),
        ("--data.help Synthetic", ["--data.alpha", "--data.size_sigma", "--data.val_fraction", "--data.seed"]),
    ],
)
def test_help_explains_every_option(call: Call, words: str, expected: list[str]) -> None:
    answer = call(f"fit {words}")
    assert answer.code == 0
    explained = options(answer.out)
    listed = set(re.findall(r"^  (?:-\w[^,\n]*, )?(--[\w.]+)", answer.out, re.MULTILINE))
    assert listed >= set(expected)
    assert len(explained) == len(re.findall(r"^  -", answer.out, re.MULTILINE))
    assert [option for option, said in explained.items() if len(said.split()) < 2] == []


def test_help_of_an_algorithm_names_networks_and_not_every_layer_of_torch(
    call: Call, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workplace / "my_nets.py").write_text("from torch import nn\n\n\nclass Mine(nn.Module):\n    pass\n")
    monkeypatch.syspath_prepend(workplace)
    mine = importlib.import_module("my_nets").Mine
    said = " ".join(call("fit --model.help FedBC").out.split())
    known = re.search(r"--model.net NET .*?known subclasses: (.*?); any other by its import path\)", said)
    assert known is not None
    shown = known[1].split(", ")
    assert {f"fedlit.{name}" for name in models.__all__} | {"my_nets.Mine"} <= set(shown), mine
    assert [name for name in shown if name.startswith(("torch", "pytorch_lightning", "fedlit.Fed"))] == []
    assert len(call("fit --model.help FedBC").out.splitlines()) < 150


def test_config_of_another_folder_may_name_a_class_of_the_working_folder(call: Call, workplace: Path) -> None:
    (workplace / "beside.py").write_text("from fedlit import FedBC\n\n\nclass Beside(FedBC):\n    pass\n")
    (workplace / "inner").mkdir()
    (workplace / "inner" / "own.yaml").write_text("model:\n  class_path: beside.Beside\n")
    answer = call(f"fit {TINY} --config inner/own.yaml --trainer.rounds 1")
    assert answer.code == 0, answer.err
    assert read_config()["model"]["class_path"] == "beside.Beside"


def test_version_is_the_packages(call: Call) -> None:
    assert call("--version").out == f"fedlit {fedlit.__version__}\n"


@pytest.mark.parametrize("words", ["", "--help", "-h"])
def test_help_without_a_command_lists_the_commands(call: Call, words: str) -> None:
    answer = call(words)
    assert answer.code == 0
    assert "fit" in answer.out
    assert "conformance" in answer.out


# wrong input: said in a paragraph that names the fix, and nothing is written


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model:\n  class_path: FedBX\n", "own.yaml: model names the class 'FedBX', which does not exist."),
        ("trainer:\n  rounds: many\n", "own.yaml: trainer.rounds is 'many', but it must be a whole number."),
    ],
)
def test_mistake_in_a_config_of_another_folder_is_found_there(
    call: Call, workplace: Path, text: str, said: str
) -> None:
    (workplace / "inner").mkdir()
    (workplace / "inner" / "own.yaml").write_text(text)
    answer = call(f"fit {TINY} --config inner/own.yaml")
    assert answer.code == 2
    assert said in answer.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--config synthetic_fedbc.yaml fit", "'--config' is before the command.*Write: fedlit fit --config"),
        ("-c synthetic_fedbc.yaml", "'-c' is before the command.*Write: fedlit fit -c"),
        ("fitt", "no command 'fitt'. Did you mean 'fit'"),
        ("bench", "`fedlit bench` has left the package. Type: python -m benchmarks"),
        ("cloud --config x.yaml --clients 20", "`fedlit cloud` is gone: a cloud's clients are nodes on Flower now"),
        ("fit", "Nothing says what to train.*--config"),
        ("fit --config", "needs a file after it"),
        (
            "fit --config digits_fedavg.yaml --data.val_fraction 0.2",
            "'data.val_fraction' is not an option of this data set",
        ),
        (
            "fit --config cifar_flip_fedavg.yaml --data.corruption.rate 1.3",
            "data.corruption.rate is 1.3. It is a share",
        ),
        ("fit --config cifar_fedbc.yaml --data.partition.num_klients 5", "Did you mean 'data.partition.num_clients'"),
        ("fit --config cifar_fedbc.yaml --data.partition PowerLow", "Did you mean 'PowerLaw'"),
        ("fit --config cifar_imbalance_fedavg.yaml --data.fresh.clients 0", "data.fresh.clients is 0"),
        (
            "fit --config nothing.yaml",
            "no config 'nothing.yaml'.*own. 'fedlit list configs' lists those that fedlit ships",
        ),
        ("fit --config synthetic_fedbv.yaml", "own. Did you mean 'synthetic_fedbc'. 'fedlit list configs' lists"),
        ("fit --config synthetic_fedbc.yaml --trainer.rounds", "--trainer.rounds has no value"),
        ("fit --config synthetic_fedbc.yaml 3", "'3' belongs to no option"),
    ],
)
def test_a_command_that_cannot_be_read_is_refused(refusal: Refusal, words: str, said: str) -> None:
    assert re.search(said, refusal(words))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--trainer.round 3", "'trainer.round' is not an option. Did you mean 'trainer.rounds'"),
        ("--trainer.clients_per_rounds 3", "Did you mean 'trainer.clients_per_round'"),
        ("--trainer.lr 3", "'trainer.lr' is not an option. Did you mean 'model.lr'"),
        ("--rounds 3", "'--rounds' is not an option. Did you mean '--trainer.rounds'"),
        ("--round 3", "Did you mean '--trainer.rounds'"),
        ("--lr 3", "Did you mean '--model.lr'"),
        ("--num_clients 3", "Did you mean '--data.num_clients'"),
        ("--batch-size 3", "Did you mean '--model.batch_size'"),
        ("--hidden 3", "Did you mean '--model.net.hidden'"),
        ("--seed 3", "'--seed' is not an option. Did you mean '--seed_everything'"),
        ("--resum", "Did you mean '--resume'"),
        ("--trainer.weights ExpAlpha --trainer.weights.alhpa 1", "Did you mean 'trainer.weights.alpha'"),
        ("--trainer.cloud.sevrers 3", "Did you mean 'trainer.cloud.servers'"),
        ("--data.help CIFAR", "data names the class 'CIFAR', which does not exist. Did you mean 'CIFAR10'"),
        ("--model.net.help Softmx", "model.net names the class 'Softmx', .*Did you mean 'fedlit.Softmax'"),
        ("--trainer.weights.help Exp", "trainer.weights names the class 'Exp', .*Did you mean 'ExpAlpha'"),
        ("--model.dual_rate 3", "'model.dual_rate' is not an option"),
        ("--model.local_epoch 3", "Did you mean 'model.local_epochs'"),
        ("--model.net.num_feature 3", "Did you mean 'model.net.num_features'"),
        ("--data.num_client 3", "Did you mean 'data.num_clients'"),
        ("--model FedBCC", "model names the class 'FedBCC', which does not exist. Did you mean 'FedBC'.*FedAvg, FedBC"),
        ("--data Sinthetic", "data names the class 'Sinthetic', which does not exist. Did you mean 'Synthetic'"),
        ("--model nowhere.Mine", "model names the class 'nowhere.Mine', which does not exist"),
        ("--model collections.OrderedDict", "model names 'collections.OrderedDict', which is not a Client"),
        (
            "--model.net Softmx",
            "model.net names the class 'Softmx', which does not exist. Did you mean 'fedlit.Softmax'",
        ),
        ("--model.net Softmax", "model.net names the class 'Softmax', and there are several.*fedlit.Softmax"),
        ("--trainer.callbacks Foo", "trainer.callbacks names the class 'Foo', which does not exist"),
        ("--trainer.sampler unifrom", "trainer.sampler is 'unifrom'.*Did you mean 'uniform'"),
        ("--trainer.weights duals", "trainer.weights is 'duals'.*Did you mean 'dual'"),
        ("--trainer.server_optimizer SDG", "trainer.server_optimizer is 'SDG'.*Did you mean 'SGD'"),
        ("--trainer.seed 3", "--seed_everything"),
        ("--trainer.run other", "trainer.run is set by --run"),
        ("--model.net torch.nn.Linear", "model.net lacks in_features, out_features"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(refusal: Refusal, words: str, said: str) -> None:
    message = refusal(f"fit {TINY} {words}")
    assert re.search(said, message)
    assert "synthetic_fedbc.yaml: " not in message, "the file is not to blame"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--trainer.rounds three", "trainer.rounds is 'three', but it must be a whole number"),
        ("--trainer.rounds 2.5", "trainer.rounds is '2.5', but it must be a whole number"),
        ("--trainer.engine fast", "trainer.engine is 'fast', but it must be one of auto, sequential, vectorized"),
        ("--trainer.compiled maybe", "trainer.compiled is 'maybe', but it must be true or false"),
        ("--trainer.max_time soon", "'soon'.*DD:HH:MM:SS"),
        ("--model.lr fast", "model.lr is 'fast', but it must be a number"),
        ("--model.lr nan", "model.lr is 'nan', but it must be a number"),
        ("--model.clip wide", "model.clip is 'wide', but it must be a number"),
        ("--model.tolerance_uses older", "model.tolerance_uses is 'older', but it must be one of old, new"),
        ("--data.iid maybe", "data.iid is 'maybe', but it must be true or false"),
        ("--wandb sometimes", "wandb is 'sometimes', but it must be one of online, offline, disabled"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_the_right_one(refusal: Refusal, words: str, said: str) -> None:
    assert re.search(said, refusal(f"fit {TINY} {words}"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--model.lr 0", "model.lr is 0.0, but a learning rate must be above 0"),
        ("--model.lr -0.1", "model.lr is -0.1"),
        ("--model.momentum 1", "model.momentum is 1.0"),
        ("--model.weight_decay -1", "model.weight_decay is -1.0"),
        ("--model.clip 0", "model.clip is 0.0"),
        ("--model.batch_size 0", "model.batch_size is 0"),
        ("--model.local_epochs 0", "model.local_epochs is 0"),
        ("--model.local_steps -2", "model.local_steps is -2"),
        ("--model.lr_decay 0", "model.lr_decay is 0.0"),
        ("--model.dual_lr -1", "model.dual_lr is -1.0"),
        ("--model.tolerance_lr -1", "model.tolerance_lr is -1.0"),
        ("--model.dual_init -1", "model.dual_init is -1.0"),
        ("--model FedProx --model.mu -1", "model.mu is -1.0"),
        ("--trainer.rounds 0", "trainer.rounds is 0; give 1 or more"),
        ("--trainer.clients_per_round 0", "trainer.clients_per_round is 0; give 1 or more"),
        ("--trainer.eval_every 0", "trainer.eval_every is 0"),
        ("--trainer.lanes 0", "trainer.lanes is 0"),
        ("--trainer.workers 0", "trainer.workers is 0"),
        ("--trainer.checkpoint_every 0", "trainer.checkpoint_every is 0"),
        ("--trainer.divergence_factor 1", "trainer.divergence_factor is 1.0"),
        ("--trainer.server_optimizer.lr 0", "server optimiser's lr is 0.0"),
        ("--trainer.sampler FixedSampler --trainer.sampler.clients [0,0]", "FixedSampler got clients \\[0, 0\\]"),
        ("--seed_everything -1", "seed_everything is -1"),
        ("--data.num_clients 0", "data.num_clients is 0"),
        ("--data.val_fraction 1", "data.val_fraction is 1.0"),
        ("--data.seed -1", "data.seed is -1"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused(refusal: Refusal, words: str, said: str) -> None:
    assert re.search(said, refusal(f"fit {TINY} {words}"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--trainer.clients_per_round 5", "clients_per_round is 5, but the data.*only 4 clients. Set it to 4 or less"),
        ("--data.size_min 0 --data.size_mean -0.5 --data.size_sigma 1", "Client 1 has no training data.*allow_empty"),
        ("--trainer.max_epochs 3", "trainer.max_epochs makes no sense.*Give rounds instead"),
        ("--trainer.accumulate_grad_batches 2", "accumulate_grad_batches makes no sense.*model.batch_size instead"),
        ("--model FedAvg --trainer.weights dual", "trainer.weights is Dual.*FedAvg keeps none. Use 'samples'"),
        (
            "--data.val_fraction 0 --trainer.callbacks EarlyStopping --trainer.callbacks.monitor val/acc",
            "EarlyStopping monitors 'val/acc', but there is no validation data.*data.val_fraction to 0.1",
        ),
        ("--model.net.num_features 61", r"model.net \(Softmax\) cannot take samples of shape \(60,\)"),
        ("--model.net.num_classes 7", r"outputs of shape \(7,\), but Synthetic has 10 classes"),
        (
            "--trainer.sampler FixedSampler --trainer.sampler.clients [0,9]",
            "client 9, but the data have clients 0 to 3",
        ),
    ],
)
def test_options_that_make_no_sense_together_are_refused(refusal: Refusal, words: str, said: str) -> None:
    assert re.search(said, refusal(f"fit {TINY} {words}"))


def test_a_refused_run_leaves_no_trace_of_its_loggers(refusal: Refusal) -> None:
    loggers = "--wandb offline --trainer.logger CSVLogger --trainer.logger.save_dir logs"
    assert "clients_per_round is 5" in refusal(f"fit {TINY} {loggers} --trainer.clients_per_round 5")


CONFIG = """\
trainer:
  rounds: 3
model:
  class_path: FedBC
  init_args:
    lr: 0.01
    net:
      class_path: fedlit.Softmax
data:
  class_path: Synthetic
  init_args:
    alpha: 0.5
"""


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("rounds: 3", "round: 3", "mine.yaml: 'trainer.round' is not an option. Did you mean 'trainer.rounds'"),
        ("rounds: 3", "rounds: three", "mine.yaml: trainer.rounds is 'three', but it must be a whole number"),
        ("rounds: 3", "max_epochs: 3", "mine.yaml: trainer.max_epochs makes no sense.*Give rounds instead"),
        ("rounds: 3", "compiled: maybe", "mine.yaml: trainer.compiled is 'maybe', but it must be true or false"),
        ("trainer:", "trainr:", "mine.yaml: 'trainr.rounds' is not an option. Did you mean 'trainer.rounds'"),
        ("lr: 0.01", "lrr: 0.01", "mine.yaml: 'model.lrr' is not an option. Did you mean 'model.lr'"),
        ("lr: 0.01", "lr: fast", "mine.yaml: model.lr is 'fast', but it must be a number"),
        ("lr: 0.01", "lr: [0.01]", "model.lr is .*but it must be a number"),
        ("FedBC", "FedBCC", "mine.yaml: model names the class 'FedBCC'.*Did you mean 'FedBC'"),
        ("fedlit.Softmax", "fedlit.Softmacs", "mine.yaml: .*'fedlit.Softmacs', which does not exist"),
        ("alpha: 0.5", "alfa: 0.5", "mine.yaml: 'data.alfa' is not an option. Did you mean 'data.alpha'"),
        ("  rounds: 3", "  rounds: [3", "mine.yaml, line .*: this is not YAML.*Fix that line"),
        ("  rounds: 3", "\trounds: 3", r"mine.yaml, line \d+: there is a tab.*Indent with spaces"),
        (
            "lr: 0.01",
            "lr: 0.01\n    lr: 0.02",
            r"mine.yaml, line \d+: 'lr' is already given in line \d+. Keep one",
        ),
        ("rounds: 3", "rounds: 3\n  'rounds': 9", "mine.yaml, line .*: 'rounds' is already given"),
        ("trainer:", "seed_everything: 1\nseed_everything: 2\ntrainer:", "'seed_everything' is already given"),
        (CONFIG, "", "mine.yaml holds no keys"),
        (CONFIG, "just words", "mine.yaml holds no keys"),
        (CONFIG, "a: \x01", "mine.yaml cannot be read"),
    ],
)
def test_a_mistake_in_a_config_is_named_with_its_file(refusal: Refusal, right: str, wrong: str, said: str) -> None:
    Path("mine.yaml").write_text(CONFIG.replace(right, wrong))
    assert re.search(said, refusal("fit --config mine.yaml --run run"))


def test_a_key_of_a_merged_mapping_may_be_overridden(call: Call) -> None:
    Path("mine.yaml").write_text("base: &base {rounds: 9, seed: 4}\ntrainer:\n  <<: *base\n  rounds: 3\n")
    assert "is already given" not in call("fit --config mine.yaml").err


def test_debug_shows_the_traceback(call: Call) -> None:
    with pytest.raises(ConfigError, match="model.lr is 0.0"):
        call(f"fit {TINY} --model.lr 0 --debug")


# a run folder that is in the way, read-only or full


def test_a_folder_with_a_run_is_refused_without_resume(call: Call, refusal: Refusal) -> None:
    assert call(f"fit {TINY}").code == 0
    assert re.search("run already holds a run.*--resume.*--overwrite.*--run DIR.*resume=True", refusal(f"fit {TINY}"))


@pytest.mark.parametrize("where", ["notes", "notes/deeper"])
def test_a_file_in_the_way_of_the_folder_is_kept(refusal: Refusal, where: str) -> None:
    Path("notes").write_text("mine")
    assert re.search("a file is where a folder should be.*--run DIR", refusal(f"fit {TINY} --run {where}"))


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES], ids=["file system", "permission"])
def test_a_read_only_place_is_refused(refusal: Refusal, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def mkdir(*args: object, **kwargs: object) -> None:  # a real one would not stop root, who may run the tests
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "mkdir", mkdir)
    assert re.search("run cannot be written: it is read-only.*--run DIR", refusal(f"fit {TINY}"))


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("/proc/nowhere", "its folder is gone, or cannot be made there.*--run DIR"),
        ("n" * 300, "the name is too long for the file system.*--run DIR"),
        (f"deeper/{'n' * 300}", "the name is too long for the file system.*--run DIR"),
    ],
    ids=["cannot be made", "too long", "too long below"],
)
@pytest.mark.parametrize("option", ["", "--resume --wandb offline"], ids=["new", "resumed"])
def test_a_place_where_no_folder_can_be_is_refused(refusal: Refusal, where: str, said: str, option: str) -> None:
    assert re.search(f"{where} cannot be written: {said}", refusal(f"fit {TINY} --run {where} {option}"))


@pytest.mark.parametrize("where", ["/proc/nowhere/", "n" * 300 + "/"], ids=["none", "long"])
@pytest.mark.parametrize(
    "words",
    [
        "export run --out {}x",
        "report run --out {}x",
        "dashboard run --out {}x.html",
        f"data {TINY} --out {{}}x",
        "compare --configs synthetic_fedbc --out {}x",
        "sweep synthetic_fedbc --out {}x",
        "workspace --json {}x.json",
    ],
    ids=lambda words: words.split()[0],
)
def test_an_output_that_cannot_be_written_is_refused(call: Call, refusal: Refusal, words: str, where: str) -> None:
    if " run " in words:
        assert call(f"fit {TINY}").code == 0
    said = refusal(words.format(where))
    assert where in said
    assert re.search("cannot be (written|made)", said)


def fills_up(monkeypatch: pytest.MonkeyPatch, call: str, file: str, after: int) -> None:
    """From the (after + 1)-th time on, the system call reports a full disk for this file."""
    real = getattr(os, call)
    seen: list[str] = []

    def limited(fd: int, *args: Any) -> Any:
        seen.extend([file] * os.readlink(f"/proc/self/fd/{fd}").endswith(file))
        if len(seen) > after and os.readlink(f"/proc/self/fd/{fd}").endswith(file):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, *args)

    monkeypatch.setattr(os, call, limited)


@pytest.mark.parametrize(
    ("system_call", "file", "after"),
    [("fsync", "last.ckpt.tmp", 4), ("fsync", "last.ckpt.tmp", 5), ("write", "metrics.csv", 3)],
    ids=["at a checkpoint", "at its renaming", "at a row of metrics"],
)
def test_a_full_disk_ends_the_run_and_the_last_checkpoint_stays_good(
    call: Call, system_call: str, file: str, after: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fills_up(patch, system_call, file, after)
        answer = call(f"fit {TINY} --trainer.rounds 5")
    assert answer.code == 2
    assert re.fullmatch("fedlit: .*the disk is full. Free some space and continue with --resume.*\n", answer.err)
    assert rounds_in("last.ckpt") == 2
    assert rounds_in("previous.ckpt") in (1, 2)
    assert list(Path("run").rglob("*.tmp")) == []
    assert call(f"fit {TINY} --trainer.rounds 5 --resume").code == 0
    assert [row["round"] for row in read_metrics(Path("run/metrics.csv"))] == [0, 1, 2, 3, 4, 5]


# a run that diverges


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--model.lr 1e30", "Round 2: client [0-3] diverged.*not finite.*Lower model.lr"),
        (
            "--model.lr 30 --trainer.divergence_factor 1.5",
            "Round 2: the mean training loss .*above 1.5 times.*client [0-3] .*raise trainer.divergence_factor",
        ),
    ],
    ids=["not finite", "above the factor"],
)
def test_a_diverging_run_ends_with_client_and_round_and_keeps_its_last_checkpoint(
    call: Call, words: str, said: str
) -> None:
    answer = call(f"fit {TINY} {words}")
    assert answer.code == 1
    assert re.fullmatch(f"fedlit: {said}.*\n", answer.err)
    assert rounds_in("last.ckpt") == 1
    assert [row["round"] for row in read_metrics(Path("run/metrics.csv"))] == [0, 1]
    weights = torch.load("run/checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert all(bool(torch.isfinite(value).all()) for value in weights.values())


# signals and terminals, in processes of their own


def start(words: str, **environment: str) -> "subprocess.Popen[str]":
    """`fedlit` from its very beginning."""
    command = [sys.executable, str(Path(fedlit.__file__).parents[1] / "fedlit_start.py"), *words.split()]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=os.environ | environment)


@pytest.mark.parametrize("seconds", [0, 1], ids=["in torch", "behind it"])
def test_ctrl_c_while_it_is_still_importing_is_one_line(workplace: Path, seconds: int) -> None:
    process = start("fit --config synthetic_fedbc.yaml --run run")
    maps = Path(f"/proc/{process.pid}/maps")
    while process.poll() is None and "libtorch" not in maps.read_text():
        time.sleep(0.01)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    assert re.fullmatch("fedlit: stopped .*\n", err)
    assert not Path("run").exists()


def test_the_installed_command_is_the_one_that_these_tests_start() -> None:
    project = tomllib.loads((Path(fedlit.__file__).parents[1] / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"fedlit": "fedlit_start:main"}
    assert project["tool"]["setuptools"]["py-modules"] == ["fedlit_start"]


def test_ctrl_c_while_data_are_read_is_one_line(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def setup(self: object, stage: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(fedlit.Synthetic, "setup", setup)
    answer = call(f"fit {TINY}")
    assert (answer.code, answer.out) == (130, "")
    assert re.fullmatch("fedlit: stopped at once.*--resume.\n", answer.err)


TWICE = """\
import os, signal
from fedlit import ServerCallback


class Twice(ServerCallback):
    def on_cohort_trained(self, trainer, client, cohort):
        for _ in range(2 * (cohort.round == 2)):
            os.kill(os.getpid(), signal.SIGINT)
"""


def test_a_second_ctrl_c_ends_at_once_with_130_and_says_how_to_continue(
    call: Call, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workplace / "twice.py").write_text(TWICE)
    monkeypatch.syspath_prepend(str(workplace))
    answer = call(f"fit {TINY} --trainer.callbacks twice.Twice")
    assert answer.code == 130
    assert re.fullmatch("fedlit: stopped at once.*--resume.\n", answer.err)
    assert rounds_in("last.ckpt") == 2


def test_a_terminal_without_greek_letters_gets_question_marks(workplace: Path) -> None:
    process = start("list", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="ascii")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "FedBC" in out
    assert out.isascii()


def test_a_full_memory_is_told_in_one_paragraph(refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: object) -> None:
        raise MemoryError("malloc of size 64 failed")

    monkeypatch.setattr("fedlit.cli.list.main", fill)
    assert "the memory is full (malloc of size 64 failed)" in refusal("list configs", code=1)


def test_a_class_of_the_working_folder_is_found_by_a_config_of_another(call: Call) -> None:
    Path("own_algorithm.py").write_text("import fedlit\n\n\nclass Mine(fedlit.FedAvg):\n    pass\n")
    Path("configs").mkdir()
    shipped = next(path for path in SHIPPED if path.name == "synthetic_fedavg.yaml").read_text()
    Path("configs/mine.yaml").write_text(shipped.replace("class_path: FedAvg", "class_path: own_algorithm.Mine"))
    answer = call(TINY.replace("synthetic_fedbc.yaml", "configs/mine.yaml").join(["fit ", ""]))
    assert answer.code == 0
