"""Where a config is looked for, and which of several wins."""

from pathlib import Path

import pytest

from fedlit.config.files import find_config, given_configs, resolve_configs, shipped_configs
from fedlit.config.fit_cli import FitCLI, default_name
from fedlit.errors import ConfigError
from tests.conftest import SHIPPED


def lr(words: str) -> float:
    """The learning rate that a command trains with."""
    rate = FitCLI(resolve_configs(words.split())).model.lr
    assert isinstance(rate, float)
    return rate


def test_every_config_of_the_checkout_is_shipped() -> None:
    assert SHIPPED
    assert set(SHIPPED) <= set(shipped_configs().values())


@pytest.mark.parametrize("name", ["synthetic_fedbc.yaml", "synthetic_fedbc"])
def test_a_bare_name_is_found_from_any_folder(workplace: Path, name: str) -> None:
    assert Path(find_config(name)) == shipped_configs()["synthetic_fedbc.yaml"]


def test_a_config_in_the_working_folder_wins_over_the_shipped_one(workplace: Path) -> None:
    shipped = shipped_configs()["synthetic_fedbc.yaml"].read_text()
    (workplace / "synthetic_fedbc.yaml").write_text(shipped.replace(" lr: 0.01", " lr: 0.03"))
    assert lr("--config synthetic_fedbc.yaml") == 0.03


def test_yaml_may_be_left_out_of_ones_own_name_too(workplace: Path) -> None:
    (workplace / "own.yaml").write_text("model:\n  class_path: FedAvg\n")
    (workplace / "synthetic_fedbc.yaml").write_text("model:\n  class_path: FedAvg\n")
    assert find_config("own") == "own.yaml"
    assert find_config("synthetic_fedbc") == "synthetic_fedbc.yaml", "the working folder comes first"


def test_of_two_configs_the_later_wins_and_the_earlier_fills_in(workplace: Path) -> None:
    (workplace / "faster.yaml").write_text("model:\n  init_args:\n    lr: 0.04\n")
    assert lr("--config synthetic_fedbc.yaml --config faster.yaml") == 0.04
    assert lr("--config faster.yaml --config synthetic_fedbc.yaml") == 0.01


def test_an_option_wins_over_the_configs_before_it(workplace: Path) -> None:
    assert lr("--config synthetic_fedbc.yaml --model.lr 0.05") == 0.05


@pytest.mark.parametrize(
    "words",
    ["--config synthetic_fedbc.yaml", "--config=synthetic_fedbc.yaml", "-c synthetic_fedbc.yaml", "-c synthetic_fedbc"],
)
def test_a_config_can_be_given_in_every_usual_form(workplace: Path, words: str) -> None:
    assert given_configs(resolve_configs(words.split())) == [str(shipped_configs()["synthetic_fedbc.yaml"])]


def test_other_options_pass_unchanged(workplace: Path) -> None:
    words = ["--model.lr", "0.1", "--trainer.rounds=3", "--resume"]
    assert resolve_configs(words) == words


def test_a_config_that_does_not_exist_is_refused_with_where_to_find_those_that_do(workplace: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config 'x/y.yaml'.*'fedlit list configs' lists") as refused:
        resolve_configs(["--config", "x/y.yaml"])
    assert str(workplace) in str(refused.value)


def test_a_config_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a file after it"):
        resolve_configs(["--model.lr", "0.1", "--config"])


@pytest.mark.parametrize("name", [path.name for path in SHIPPED if "cloud" in path.name])
def test_a_cloud_is_recorded_without_an_objects_address(workplace: Path, name: str) -> None:
    """With one, every start would have a folder of its own, and none could be resumed."""
    config = FitCLI(resolve_configs(["--config", name])).plain_config()
    assert " object at 0x" not in str(config)


def test_a_run_keeps_the_folder_that_0_2_0_gave_it() -> None:
    """Options that came later are no part of the name while they are not used; the names are those of 0.2.0."""
    words = ["--config", "synthetic_fedbc.yaml"]
    names = [
        default_name(FitCLI(resolve_configs([*words, *more])).plain_config()) for more in ([], ["--model.lr", "0.02"])
    ]
    assert names[0] == "synthetic-fedbc-0-56aabadf"
    assert names[1] != names[0]
