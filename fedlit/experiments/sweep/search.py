"""The three methods of W&B's sweeps: which values trial k gets."""

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedlit.errors import ConfigError
from fedlit.experiments.sweep.file import SweepFile
from fedlit.experiments.sweep.objective import best_of
from fedlit.experiments.sweep.parameters import Parameter, tidy
from fedlit.experiments.trials import Trial

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


class Search(Protocol):
    """A method: `total` trials, of which each is proposed when there is room for it."""

    total: int

    def propose(self, number: int, trials: Sequence[Trial]) -> dict[str, Any]:
        """The values of trial `number`, after those in `trials`, some of which may still run."""


def make_search(file: SweepFile, runs: int | None, seed: int) -> Search:
    """The method of a sweep file, or a ConfigError where it cannot work."""
    if file.method == "grid":
        return Grid(file, runs)
    total = runs or file.run_cap
    if total is None:
        raise ConfigError(
            f"{file.path.name}: the method {file.method} does not end by itself. Give the number of trials: --runs 20."
        )
    return Random(file.parameters, total, seed) if file.method == "random" else Bayes(file, total, seed)


class Grid:
    """Every combination, in W&B's order: parameters by name, of which the last changes fastest."""

    def __init__(self, file: SweepFile, runs: int | None) -> None:
        self.values: dict[str, list[Any]] = {}
        for parameter in file.parameters:
            values = parameter.grid()
            if values is None:
                raise ConfigError(
                    f"{file.path.name}: parameters.{parameter.name} is {parameter.distribution}, of which a grid "
                    "cannot take all. Give it values, or take the method random."
                )
            self.values[parameter.name] = values
        every = math.prod(len(values) for values in self.values.values())
        self.total = min(every, runs or file.run_cap or every)

    def propose(self, number: int, trials: Sequence[Trial]) -> dict[str, Any]:
        """The combination of this number."""
        chosen = {}
        for name, values in reversed(self.values.items()):
            number, index = divmod(number, len(values))
            chosen[name] = values[index]
        return dict(reversed(chosen.items()))


class Random:
    """Draws that depend on the seed and on the trial's number alone: a resumed sweep makes the same ones."""

    def __init__(self, parameters: Sequence[Parameter], total: int, seed: int) -> None:
        self.parameters, self.total, self.seed = parameters, total, seed

    def propose(self, number: int, trials: Sequence[Trial]) -> dict[str, Any]:
        """A draw."""
        rng = np.random.default_rng((self.seed, number))  # of settings: no run draws from it
        return {parameter.name: parameter.draw(rng) for parameter in self.parameters}


class Bayes:
    """Optuna's TPE, asked anew for every trial with all trials that came before it, so nothing else is kept.

    One at a time, a trial depends on the seed and on the trials before it. With more, it also depends on which of them
    have finished, and so on the time: such a sweep cannot be repeated exactly.
    """

    def __init__(self, file: SweepFile, total: int, seed: int) -> None:
        self.total, self.seed, self.goal = total, seed, file.goal
        self.constants = {p.name: p.keys["value"] for p in file.parameters if p.is_constant}
        self.parameters = [parameter for parameter in file.parameters if not parameter.is_constant]
        try:
            import optuna  # noqa: F401  # asked for before any run
        except ImportError as error:
            raise ConfigError(
                f"{file.path.name}: the method bayes needs Optuna. Install it: pip install 'fedlit[sweep]'."
            ) from error

    def propose(self, number: int, trials: Sequence[Trial]) -> dict[str, Any]:
        """What TPE makes of the finished trials; running ones are kept away from."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        seed = int(np.random.SeedSequence((self.seed, number)).generate_state(1)[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # constant_liar, since 2020
            sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        study = optuna.create_study(direction=self.goal, sampler=sampler)
        spaces = {parameter.name: space_of(parameter) for parameter in self.parameters}
        values = [trial.value for trial in trials if trial.value is not None]
        worst = best_of(values, "minimize" if self.goal == "maximize" else "maximize") if values else None
        for trial in trials:
            value = worst if trial.status == "failed" else trial.value  # as W&B does: TPE then leaves that corner
            study.add_trial(
                optuna.trial.create_trial(
                    params={p.name: encoded(p, trial.parameters[p.name]) for p in self.parameters},
                    distributions=spaces,
                    value=value,
                    state=optuna.trial.TrialState.RUNNING if value is None else optuna.trial.TrialState.COMPLETE,
                )
            )
        asked = study.ask(spaces).params
        return self.constants | {p.name: decoded(p, asked[p.name]) for p in self.parameters}


def space_of(parameter: Parameter) -> "BaseDistribution":
    """The parameter as Optuna has it; of a list the places, since it may hold anything."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if "values" in parameter.keys:
        return CategoricalDistribution(range(len(parameter.keys["values"])))
    if parameter.distribution == "int_uniform":
        return IntDistribution(parameter.keys["min"], parameter.keys["max"])
    low, high = bounds(parameter)
    return FloatDistribution(low, high, log=parameter.is_log, step=parameter.keys.get("q"))


def bounds(parameter: Parameter) -> tuple[float, float]:
    """Smallest and largest value of a range; the last multiple of q where it has steps."""
    low, high = float(parameter.keys["min"]), float(parameter.keys["max"])
    step = parameter.keys.get("q")
    return (low, high) if step is None else (low, low + step * math.floor((high - low) / step + 1e-9))


def encoded(parameter: Parameter, value: Any) -> Any:
    """A trial's value as Optuna has it, back in the range that rounding may have left."""
    if "values" in parameter.keys:
        return parameter.keys["values"].index(value)
    if parameter.distribution == "int_uniform":
        return value
    low, high = bounds(parameter)
    return min(max(float(value), low), high)


def decoded(parameter: Parameter, value: Any) -> Any:
    """Optuna's value as the command line has it."""
    if "values" in parameter.keys:
        return parameter.keys["values"][value]
    if parameter.distribution == "int_uniform" or isinstance(parameter.keys.get("q"), int):
        return int(value)
    return tidy(value)
