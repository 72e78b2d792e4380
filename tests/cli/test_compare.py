"""`fedlit compare` as a user calls it: what it refuses, runs, writes, and does not run again."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fedlit.errors import ConfigError
from fedlit.experiments.compare import described, read_configs
from fedlit.experiments.trials import TrialLog
from fedlit.results.runs import find_runs
from tests.conftest import SHIPPED, Call
from tests.experiments.sweep.sweeps import TINY

Refusal = Callable[..., str]


def starts(folder: Path) -> dict[str, int]:
    """How often each run was started."""
    return {path.stem: path.read_text().count("$ fedlit fit") for path in sorted(folder.glob("*.log"))}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--configs synthetic_fedbc --seeds 0", "--seeds is 0; give 1 or more"),
        ("--configs synthetic_fedbc --jobs 0", "--jobs is 0; give 1 or more"),
        ("--configs synthetic_fedbc,", "--configs has an empty name"),
        ("--configs synthetic_fedbc,synthetic_fedbc.yaml", "--configs names 'synthetic_fedbc' twice"),
        ("--configs synthetic_fedbc --seed_everything 3", "--seeds N gives the runs of a config the seeds 0 to N-1"),
        ("--configs synthetic_fedbc --seed 3", "--seed cannot be given here: --seeds N gives"),
        ("--configs synthetic_fedbc --data_seeds --data.seed 3", "--data_seeds sets it"),
        ("--configs synthetic_fedbc --config x.yaml", "give configs with --configs"),
        ("--configs synthetic_fedbc --run x", "every run gets a folder of its own"),
        (
            "--configs synthetic_fedbc,synthetic_fedavg --model.dual_lr 1",
            "synthetic_fedavg: 'model.dual_lr' is not an opt",
        ),
        ("--configs synthetic_fedavg,synthetic_fedbc --model.lr -1", "synthetic_fedavg: model.lr is -1"),
        ("--configs synthetic_fedavg --trainer.rounds 0", "synthetic_fedavg: trainer.rounds is 0; give 1 or more."),
        (
            "--configs synthetic_fedavg synthetic_fedbc",
            "by commas, without spaces: --configs synthetic_fedavg,synthetic_fedbc.",
        ),
        ("--configs synthetic_fedavg --data.alhpa 1", "'data.alhpa' is not an option. Did you mean 'data.alpha'?"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_runs(refusal: Refusal, words: str, said: str) -> None:
    assert said in refusal(f"compare {words}")


def test_a_config_that_does_not_exist_is_refused(refusal: Refusal) -> None:
    assert "There is no config 'nothing'" in refusal("compare --configs synthetic_fedavg,nothing")


def test_a_config_that_is_wrong_is_refused_before_the_right_ones_run(refusal: Refusal, workplace: Path) -> None:
    (workplace / "wrong.yaml").write_text("model:\n  class_path: FedBC\n  init_args:\n    lrr: 1\n")
    assert "wrong.yaml: 'model.lrr' is not an option" in refusal("compare --configs synthetic_fedavg,wrong.yaml")


@pytest.mark.usefixtures("figures_are_not_drawn")
def test_from_one_command_to_table_report_and_dashboard_and_more_seeds_run_only_the_new_ones(
    call: Call, workplace: Path
) -> None:
    words = f"compare --configs synthetic_fedavg,synthetic_fedprox.yaml --out out --jobs 1 {TINY}"
    first = call(f"{words} --seeds 1")
    assert first.code == 0, first
    assert starts(Path("out")) == {"synthetic_fedavg-0": 1, "synthetic_fedprox-0": 1}
    second = call(f"{words} --seeds 2")
    assert second.code == 0, second
    assert starts(Path("out")) == dict.fromkeys(
        ("synthetic_fedavg-0", "synthetic_fedavg-1", "synthetic_fedprox-0", "synthetic_fedprox-1"), 1
    )
    rows = [line.split() for line in second.out.splitlines() if re.match(r"synthetic_\w+ +2 ", line)]
    assert [row[0] for row in rows] == ["synthetic_fedavg", "synthetic_fedprox"]
    assert all("±" in row for row in rows)
    assert Path("out/report").is_dir()
    assert "report: out/report" in second.out
    assert Path("out/dashboard.html").is_file()
    runs = find_runs([Path("out")])
    assert sorted((run.algorithm, run.seed) for run in runs) == [
        *(("FedAvg", (0, 0)), ("FedAvg", (1, 0)), ("FedProx", (0, 0)), ("FedProx", (1, 0))),
    ]
    other = call(f"{words} --seeds 1 --model.lr 0.05")
    assert other.code == 2
    assert "the options of all runs changed. It was begun with --data.num_clients 4" in other.err
    assert "another folder with --out DIR" in other.err


def test_a_folder_with_runs_of_a_config_that_was_edited_is_refused(workplace: Path) -> None:
    write_config(workplace / "own.yaml", 2)
    before = described(read_configs(["own.yaml"], [], data_seeds=False), [], data_seeds=False)
    TrialLog.open(Path("out/compare.json"), before).make_folder()
    TrialLog.open(Path("out/compare.json"), before).save()
    write_config(workplace / "own.yaml", 3)
    after = described(read_configs(["own.yaml"], [], data_seeds=False), [], data_seeds=False)
    with pytest.raises(ConfigError, match="the config own changed"):
        TrialLog.open(Path("out/compare.json"), after)


def write_config(path: Path, clients_per_round: int) -> None:
    shipped = next(path for path in SHIPPED if path.name == "synthetic_fedavg.yaml").read_text()
    assert "clients_per_round: 10 " in shipped
    path.write_text(shipped.replace("clients_per_round: 10 ", f"clients_per_round: {clients_per_round} "))


@pytest.mark.usefixtures("figures_are_not_drawn")
def test_a_failing_run_is_named_and_fails_the_command_but_not_the_others(call: Call, workplace: Path) -> None:
    """That there are fewer clients than a round takes is seen when the data are made: in the run."""
    write_config(workplace / "few.yaml", 2)
    write_config(workplace / "many.yaml", 9)
    words = TINY.replace("--trainer.clients_per_round 2 ", "")
    answer = call(f"compare --configs many.yaml,few.yaml --seeds 1 --jobs 2 --out out {words}")
    assert answer.code == 1
    assert re.search(r"failed: many-0: trainer\.clients_per_round is 9, but", answer.out)
    assert re.search(r"few +1 ", answer.out)
    assert Path("out/report").is_dir()
