"""The runs of a comparison: which there are, with which seeds, and where they go."""

from pathlib import Path

from fedlit.experiments.compare import Comparison, Config, default_folder, read_configs
from fedlit.experiments.trials import TrialLog
from tests.conftest import SHIPPED

CONFIGS = [Config("a", "a.yaml", 10), Config("b", "b.yaml", 20)]


def comparison(seeds: int, *, data_seeds: bool = False) -> Comparison:
    overrides = ["--data.alpha", "1"]
    return Comparison(CONFIGS, seeds, overrides, TrialLog(Path("out/compare.json"), {}), data_seeds=data_seeds)


def test_every_config_runs_with_every_seed_and_the_first_seeds_come_first() -> None:
    jobs = list(comparison(2).jobs())
    assert [job.name for job in jobs] == ["a-0", "b-0", "a-1", "b-1"]
    assert [job.folder for job in jobs] == [Path("out") / job.name for job in jobs]
    assert [job.rounds for job in jobs] == [10, 20, 10, 20]


def test_the_seed_goes_to_the_run_and_only_on_request_to_the_data() -> None:
    last = list(comparison(3).jobs())[-1]
    assert last.arguments == ("--config", "b.yaml", "--data.alpha", "1", "--seed_everything=2")
    assert list(comparison(3, data_seeds=True).jobs())[-1].arguments == (*last.arguments, "--data.seed=2")


def test_the_folder_depends_on_configs_and_overrides_and_not_on_seeds(workplace: Path) -> None:
    configs = read_configs(["synthetic_fedavg"], [], data_seeds=False)
    folder = default_folder(configs, [], data_seeds=False)
    assert folder == default_folder(configs, [], data_seeds=False)
    others = [
        default_folder(configs, ["--data.alpha", "1"], data_seeds=False),
        default_folder(configs, [], data_seeds=True),
        default_folder(read_configs(["synthetic_fedbc"], [], data_seeds=False), [], data_seeds=False),
    ]
    assert len({folder, *others}) == 4


def test_an_edited_config_is_another_comparison(workplace: Path) -> None:
    shipped = next(path for path in SHIPPED if path.name == "synthetic_fedavg.yaml").read_text()
    own = workplace / "own.yaml"
    own.write_text(shipped)
    before = default_folder(read_configs(["own.yaml"], [], data_seeds=False), [], data_seeds=False)
    own.write_text(shipped.replace(" lr: 0.01", " lr: 0.03"))
    assert default_folder(read_configs(["own.yaml"], [], data_seeds=False), [], data_seeds=False) != before


def test_rounds_are_those_of_config_and_overrides(workplace: Path) -> None:
    assert read_configs(["synthetic_fedavg"], ["--trainer.rounds", "7"], data_seeds=False)[0].rounds == 7
