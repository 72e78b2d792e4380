"""A comparison: several configs, each with several seeds, and the same overrides for all."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlit.config.files import find_config
from fedlit.config.parse_errors import read_yaml
from fedlit.errors import ConfigError, require
from fedlit.experiments.experiment import Experiment
from fedlit.experiments.fit_arguments import check_fit, refuse_options
from fedlit.experiments.jobs import Job
from fedlit.experiments.trials import TrialLog
from fedlit.results.folder import fingerprint
from fedlit.results.runs import Run, read_run


@dataclass(frozen=True)
class Config:
    """One config of a comparison."""

    name: str
    """Without .yaml."""
    path: str
    rounds: int


class Comparison(Experiment):
    """The runs of all configs with all seeds, in a folder."""

    what = "runs"

    def __init__(
        self, configs: Sequence[Config], seeds: int, overrides: Sequence[str], trial_log: TrialLog, *, data_seeds: bool
    ) -> None:
        super().__init__(trial_log)
        self.configs, self.seeds, self.overrides, self.data_seeds = configs, seeds, tuple(overrides), data_seeds
        self.total = len(configs) * seeds

    def jobs(self) -> Iterator[Job]:
        """All configs with the first seed, then with the second: what is finished can be compared at any time."""
        for seed in range(self.seeds):
            for config in self.configs:
                yield self.job(config, seed)

    def job(self, config: Config, seed: int) -> Job:
        """The run of a config with a seed."""
        seeds = [f"--seed_everything={seed}", *([f"--data.seed={seed}"] if self.data_seeds else [])]
        arguments = ("--config", config.path, *self.overrides, *seeds)
        name = f"{config.name}-{seed}"
        return Job(name, self.folder / name, arguments, config.rounds, {"config": config.name, "seed": seed})

    def runs(self) -> dict[str, list[Run]]:
        """The finished runs of this comparison, by the names of the configs."""
        runs: dict[str, list[Run]] = {config.name: [] for config in self.configs}
        for job in self.jobs():
            if self.trial_log.trials[job.name].status == "finished":
                runs[str(job.parameters["config"])].append(read_run(job.folder))
        return runs


def read_configs(names: Sequence[str], overrides: Sequence[str], *, data_seeds: bool) -> list[Config]:
    """The configs by name, each checked with the overrides as `fit` would check it."""
    require(all(names), "--configs has an empty name. Write the configs with commas between them: --configs A,B,C.")
    reasons = {"config": "give configs with --configs A,B"}
    reasons |= dict.fromkeys(("seed", "seed_everything"), "--seeds N gives the runs of a config the seeds 0 to N-1")
    refuse_options(overrides, reasons | ({"data.seed": "--data_seeds sets it"} if data_seeds else {}))
    configs = []
    for name in names:
        path = find_config(name)
        try:
            options = check_fit(["--config", path, *overrides])
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error
        configs.append(Config(Path(path).stem, path, int(options.trainer.rounds)))
    for config in configs:
        alike = [other.path for other in configs if other.name == config.name]
        require(len(alike) == 1, f"--configs names '{config.name}' twice ({', '.join(alike)}). Give each another name.")
    return configs


def described(configs: Sequence[Config], overrides: Sequence[str], *, data_seeds: bool) -> dict[str, Any]:
    """What a comparison is of: a folder with runs of other options, or of a config that was edited, is refused."""
    options = shlex.join([*overrides, *(["--data_seeds"] if data_seeds else [])])
    content = {f"the config {config.name}": fingerprint({"config": read_yaml(config.path)}) for config in configs}
    return {"command": "compare", "the options of all runs": options, **content}


def default_folder(configs: Sequence[Config], overrides: Sequence[str], *, data_seeds: bool) -> Path:
    """runs/compare-<hash>: what the configs hold, and the overrides, decide it; more seeds keep it."""
    content: dict[str, Any] = {config.name: read_yaml(config.path) for config in configs}
    return Path("runs") / f"compare-{fingerprint({'configs': content, 'overrides': [*overrides, data_seeds]})}"
