"""How much each option of a search matters, by Optuna's own measure of importance."""

import math
import warnings
from typing import TYPE_CHECKING, Any

from fedlit.report.figures.axes import is_wide
from fedlit.report.figures.searches import Search

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

LEAST_TRIALS = 20
"""Optuna advises five trials or more in the part that is compared with all, and that part is a quarter."""
BEST_PART = 0.25


def importances(search: Search) -> dict[str, float] | None:
    """Option -> its share of the importance, the largest first; None without Optuna, or where trials do not tell.

    PED-ANOVA (Watanabe, Bansal, Hutter, 2023): how far the best quarter of the trials differs from all of them in an
    option.
    """
    try:
        import optuna
    except ImportError:
        return None
    if len(search.scores) < LEAST_TRIALS or not tells(search):
        return None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    spaces = {option: space_of(search, option) for option in search.options}
    study = optuna.create_study(direction=search.goal, sampler=optuna.samplers.RandomSampler(seed=0))
    for index, score in enumerate(search.scores):
        params = {option: encoded(search, option, index) for option in search.options}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=spaces, value=score))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=BEST_PART)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it would like to have more
        return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))


def tells(search: Search) -> bool:
    """Whether the best quarter is better than the worst trial: tied trials cannot be told apart."""
    scores = sorted(search.scores, reverse=search.goal == "maximize")
    return scores[math.ceil(BEST_PART * len(scores)) - 1] != scores[-1]


def space_of(search: Search, option: str) -> "BaseDistribution":
    """The option as Optuna has it; of a list the places, since it may hold anything."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    values = search.different(option)
    if search.is_range(option):
        return FloatDistribution(float(values[0]), float(values[-1]), log=is_wide(values))
    return CategoricalDistribution(range(len(values)))


def encoded(search: Search, option: str, index: int) -> Any:
    """The value of a trial as Optuna has it."""
    value = search.settings[index][option]
    return float(value) if search.is_range(option) else search.different(option).index(value)
