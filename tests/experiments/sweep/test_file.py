"""Sweep files: those that are shipped work with W&B and here, and a wrong one is refused before anything runs."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # PyYAML ships no types
from jsonschema import Draft7Validator

from fedlit.config.files import shipped_sweeps
from fedlit.errors import ConfigError
from fedlit.experiments.fit_arguments import parse_fit
from fedlit.experiments.sweep.file import SweepFile, find_sweep, read_sweep
from fedlit.experiments.sweep.search import make_search
from fedlit.experiments.sweep.sweep import check_sweep
from tests.experiments.sweep.sweeps import COMMAND, make_sweep, write_sweep

LR: dict[str, Any] = {"model.lr": {"values": [0.01, 0.1]}}
RATES = {
    "fedbc": {"model.tolerance_lr", "model.dual_lr", "model.lr"},
    "pfedme": {"model.prox", "model.personal_lr", "model.lr", "model.beta"},
    "perfedavg": {"model.adapt_lr", "model.lr"},
}
FILES = sorted((Path(__file__).parents[3] / "sweeps").glob("*.yaml"))
SCHEMA = json.loads((Path(__file__).parent / "wandb_schema.json").read_text())


def agents_command(path: Path, values: dict[str, Any]) -> list[str]:
    """The command that W&B's agent makes of a sweep file, by W&B's own functions, which take seconds to import."""
    utils = importlib.import_module("wandb.sdk.launch.sweeps.utils")
    held = yaml.safe_load(path.read_text())
    macros = utils.create_sweep_command_args({"args": {name: {"value": value} for name, value in values.items()}})
    macros |= {"env": ["/usr/bin/env"], "program": [held["program"]]}
    words: list[str] = []
    for word in utils.create_sweep_command(held["command"]):
        words += macros[word[2:-1]] if word.startswith("${") else [word]
    return words


def trials(file: SweepFile) -> list[dict[str, Any]]:
    search = make_search(file, None if file.method == "grid" else 3, 0)
    return [search.propose(number, []) for number in range(search.total)]


def test_every_sweep_of_the_checkout_is_shipped() -> None:
    assert FILES
    assert set(FILES) <= set(shipped_sweeps().values())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_sweep_obeys_the_schema_of_w_and_b(path: Path) -> None:
    assert [error.message for error in Draft7Validator(SCHEMA).iter_errors(yaml.safe_load(path.read_text()))] == []


def test_the_schema_can_refuse(tmp_path: Path) -> None:
    path = write_sweep(tmp_path / "a.yaml", {"model.lr": {"min": "1e-7", "max": 0.1}})
    assert list(Draft7Validator(SCHEMA).iter_errors(yaml.safe_load(path.read_text())))


def test_the_rates_of_three_algorithms_are_swept_on_three_data_sets_by_every_method() -> None:
    names = {path.stem for path in FILES}
    for algorithm, rates in RATES.items():
        for data in ("synthetic", "mnist", "cifar"):
            for method, end in {"grid": "", "random": "_random", "bayes": "_bayes"}.items():
                name = f"{data}_{algorithm}_rates{end}"
                assert name in names
                file = read_sweep(find_sweep(name))
                assert (file.method, {parameter.name for parameter in file.parameters}) == (method, rates)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_w_and_bs_agent_runs_is_what_we_run_and_fit_accepts_it(path: Path, workplace: Path) -> None:
    file = read_sweep(path)
    check_sweep(file, [])
    for values in (trials(file)[0], trials(file)[-1]):
        words = agents_command(path, values)
        assert words[:3] == ["/usr/bin/env", "fedlit", "fit"]
        assert tuple(words[3:]) == file.arguments(values)
        options = parse_fit(words[3:])
        for name, value in values.items():
            group, _, option = name.partition(".")
            assert options[group].get("init_args", options[group])[option_path(option)] == value


def option_path(option: str) -> str:
    """Where the parser keeps an option of a class: weights.alpha is at weights.init_args.alpha."""
    return option.replace(".", ".init_args.")


@pytest.mark.parametrize("name", ["synthetic_fedbc.yaml", "synthetic_fedbc"])
def test_a_bare_name_is_found_from_any_folder(workplace: Path, name: str) -> None:
    assert find_sweep(name) == shipped_sweeps()["synthetic_fedbc.yaml"]


def test_a_file_in_the_working_folder_wins_over_the_shipped_one(workplace: Path) -> None:
    write_sweep(workplace / "synthetic_fedbc.yaml", LR)
    assert find_sweep("synthetic_fedbc.yaml") == Path("synthetic_fedbc.yaml")


def test_a_file_that_does_not_exist_is_refused_with_all_that_do(workplace: Path) -> None:
    with pytest.raises(ConfigError, match=r"no sweep file 'synthetic_fedbv'.*Did you mean") as refused:
        find_sweep("synthetic_fedbv")
    assert all(path.name in str(refused.value) for path in FILES)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"metric": None}, "names no metric"),
        ({"metric": {"goal": "maximize"}}, "names no metric"),
        ({"metric": {"name": "val/acc", "goal": "max"}}, "metric.goal is 'max'"),
        ({"metric": {"name": "val/acc", "gaol": "maximize"}}, "metric.gaol"),
        ({"method": "gird"}, "method is 'gird'"),
        ({"run_cap": 0}, "run_cap is 0"),
        ({"early_terminatee": {}}, "Did you mean 'early_terminate'"),
        ({"command": None}, "has no command"),
        ({"command": ["python", "train.py", "${args}"]}, "does not call 'fedlit fit'"),
        ({"command": COMMAND[:-1]}, r"has no \$\{args\}"),
        ({"command": [*COMMAND, "${args_json}"]}, r"\$\{args_json\}"),
    ],
)
def test_a_wrong_key_is_refused_with_the_files_name(tmp_path: Path, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_sweep(tmp_path, LR, **keys)


def test_a_sweep_needs_parameters_and_none_of_our_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no parameters"):
        make_sweep(tmp_path, {})
    with pytest.raises(ConfigError, match="every run gets a folder of its own"):
        make_sweep(tmp_path, {"run": {"value": "x"}})


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"model.lrr": {"value": 1}}, r"sweep\.yaml: 'model\.lrr' is not an option\. Did you mean 'model\.lr'\?"),
        ({"model.lr": {"values": [0.1, "fast"]}}, r"sweep\.yaml: model\.lr is 'fast', but it must be a number"),
        ({"trainer.gpus": {"value": 1}}, r"sweep\.yaml: 'trainer\.gpus' is not an option"),
    ],
)
def test_what_fit_does_not_take_is_refused_before_any_run(
    workplace: Path, parameters: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        check_sweep(make_sweep(workplace, parameters), [])


def test_a_rate_that_the_algorithm_does_not_have_is_answered_with_those_that_it_has(workplace: Path) -> None:
    command = [word.replace("fedbc", "pfedme") for word in COMMAND]
    file = make_sweep(workplace, {"model.tolerance_lr": {"values": [0.1, 0.2]}}, command=command)
    with pytest.raises(ConfigError, match=r"sweep\.yaml: 'model\.tolerance_lr' is not an option") as refused:
        check_sweep(file, [])
    said = "Did you mean 'model.personal_lr'? The rates of PFedMe are model.personal_lr, model.lr."
    assert said in str(refused.value)


def test_a_swept_parameter_cannot_be_overridden(workplace: Path) -> None:
    with pytest.raises(ConfigError, match=r"sweeps model\.lr"):
        check_sweep(make_sweep(workplace, LR), ["--model.lr", "0.1"])


@pytest.mark.parametrize(
    ("metric", "overrides", "said"),
    [
        ("val/accuracy", [], r"which no run measures\. Did you mean 'val/acc'"),
        ("val/acc", ["--data.val_fraction", "0"], "there is no validation data"),
        ("val/mse", [], r"which these runs do not measure\. Did you mean 'val/loss'"),
        ("state/mine_mean", [], "which these runs do not measure"),
        ("finetuned/acc", [], r"Give --trainer\.finetune_lr"),
        ("global/train_loss", [], r"Give --trainer\.extra_metrics '\[global/train_loss\]'"),
        ("cloud/waiting", [], r"Give --trainer\.cloud"),
    ],
)
def test_a_metric_that_no_run_would_measure_is_refused(
    workplace: Path, metric: str, overrides: list[str], said: str
) -> None:
    file = make_sweep(workplace, LR, metric={"name": metric, "goal": "maximize"})
    with pytest.raises(ConfigError, match=said):
        check_sweep(file, overrides)


@pytest.mark.parametrize(
    ("metric", "overrides"),
    [
        ("dual/mean", []),
        ("best/val_acc", []),
        ("rounds_to/0.80", []),
        ("finetuned/acc", ["--trainer.finetune_lr", "0.01"]),
        ("global/train_loss", ["--trainer.extra_metrics", "[global/train_loss]"]),
    ],
)
def test_a_metric_that_the_runs_measure_is_taken(workplace: Path, metric: str, overrides: list[str]) -> None:
    check_sweep(make_sweep(workplace, LR, metric={"name": metric, "goal": "maximize"}), overrides)


def test_macros_are_filled_as_w_and_b_fills_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDS", "7")
    words = ["fedlit", "fit", "--trainer.rounds=${envvar:ROUNDS}", "${args_no_equals}", "--overwrite"]
    file = make_sweep(tmp_path, LR, command=words)
    assert file.arguments({"model.lr": 0.1}, ["--data.seed", "3"]) == (
        *("--trainer.rounds=7", "--model.lr", "0.1", "--data.seed", "3"),
    )


def test_keys_that_only_w_and_bs_server_serves_are_named(tmp_path: Path) -> None:
    metric = {"name": "val/acc", "goal": "maximize", "target": 0.9}
    file = make_sweep(tmp_path, LR, early_terminate={"type": "hyperband", "min_iter": 3}, metric=metric)
    assert file.ignored == ("early_terminate", "metric.target")


def test_the_goal_is_to_minimize_unless_given_as_w_and_b_has_it(tmp_path: Path) -> None:
    assert make_sweep(tmp_path, LR, metric={"name": "val/loss"}).goal == "minimize"


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = write_sweep(tmp_path / "mine.yaml", LR)
    path.write_text(path.read_text() + "method: random\n")
    with pytest.raises(ConfigError, match=r"line \d+: 'method' is already given in line \d+"):
        read_sweep(path)
