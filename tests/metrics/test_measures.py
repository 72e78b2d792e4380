"""Laws of measures: for every user and pooled they are torchmetrics' own, from sums over rows."""

import pytest
import torch
import torchmetrics
from torch import Tensor

from fedlit import Classification, NextToken, Regression, Task
from fedlit.errors import ConfigError
from fedlit.metrics.catalogue import metric
from fedlit.metrics.measures import ACCURACY, MAE, MSE, PERPLEXITY, R2, TOKEN_ACCURACY, Measure
from fedlit.metrics.user_scores import UserScores, by_user, distribution

OWNERS = torch.tensor([0] * 7 + [1] * 2 + [2] * 11 + [3])
ROWS, USERS = len(OWNERS), 4


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(6, shape, generator=torch.Generator().manual_seed(seed))


def with_padding(y: Tensor) -> Tensor:
    """From 0 to 3 places at the end of a row do not count."""
    kept = torch.arange(y.shape[1]) < (y.shape[1] - torch.arange(len(y)) % 4).unsqueeze(1)
    return y.where(kept, -100)


def scored(task: Task, output: Tensor, y: Tensor) -> UserScores:
    sums = {name: by_user(rows, OWNERS, USERS) for name, rows in task.row_sums(output, y).items()}
    return UserScores(sums, torch.zeros(USERS), torch.bincount(OWNERS, minlength=USERS).double())


def with_accuracy_by_token(output: Tensor, y: Tensor) -> Tensor:
    counted = y != -100
    return torchmetrics.functional.classification.multiclass_accuracy(
        output[counted], y[counted], num_classes=6, average="micro"
    )


def perplexity(output: Tensor, y: Tensor) -> Tensor:
    return torchmetrics.functional.text.perplexity(output, y, ignore_index=-100)


NUMBERS = (drawn(ROWS), 3 * drawn(ROWS, seed=1) + 1000)
SEVERAL = (drawn(ROWS, 3), drawn(ROWS, 3, seed=1))
SEQUENCES = (drawn(ROWS, 5, 6), with_padding(tokens(ROWS, 5)))
CASES = {
    "accuracy": (Classification(), ACCURACY, drawn(ROWS, 6), tokens(ROWS), with_accuracy_by_token),
    "mse": (Regression(), MSE, *NUMBERS, torchmetrics.functional.mean_squared_error),
    "mae": (Regression(), MAE, *NUMBERS, torchmetrics.functional.mean_absolute_error),
    "r2": (Regression(), R2, *NUMBERS, torchmetrics.functional.r2_score),
    "mse of three targets": (Regression(), MSE, *SEVERAL, torchmetrics.functional.mean_squared_error),
    "mae of three targets": (Regression(), MAE, *SEVERAL, torchmetrics.functional.mean_absolute_error),
    "r2 of three targets": (Regression(), R2, *SEVERAL, torchmetrics.functional.r2_score),
    "perplexity": (NextToken(), PERPLEXITY, *SEQUENCES, perplexity),
    "accuracy of tokens": (NextToken(), TOKEN_ACCURACY, *SEQUENCES, with_accuracy_by_token),
    "accuracy of last tokens": (NextToken(), TOKEN_ACCURACY, drawn(ROWS, 6), tokens(ROWS), with_accuracy_by_token),
}
EVERY = pytest.mark.parametrize("name", CASES)


@EVERY
def test_a_measure_of_every_user_is_that_of_torchmetrics(name: str) -> None:
    task, measure, output, y, judge = CASES[name]
    users = [user for user in range(USERS) if measure is not R2 or int((user == OWNERS).sum()) > 1]
    expected = [float(judge(output[user == OWNERS], y[user == OWNERS])) for user in users]
    assert scored(task, output, y).values(measure)[users].tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)


@EVERY
def test_a_pooled_measure_is_that_of_torchmetrics_over_all_samples(name: str) -> None:
    task, measure, output, y, judge = CASES[name]
    assert scored(task, output, y).pooled(measure) == pytest.approx(float(judge(output, y)), rel=1e-6)


def test_a_net_with_one_output_per_row_is_measured_as_a_column() -> None:
    output, y = NUMBERS
    one, other = (scored(Regression(), given, y) for given in (output, output.unsqueeze(1)))
    assert [one.pooled(m) for m in Regression.measures] == [other.pooled(m) for m in Regression.measures]


@pytest.mark.parametrize(("y", "missed", "r2"), [(2.0, 0.0, 1.0), (2.0, 1.0, 0.0), (1e6 + 0.1, 1.0, 0.0)])
def test_r2_of_equal_targets_is_one_where_they_are_met_and_else_zero(y: float, missed: float, r2: float) -> None:
    wanted = torch.full((ROWS,), y, dtype=torch.float64)
    assert scored(Regression(), wanted + missed, wanted).values(R2)[:3].tolist() == [r2] * 3


def test_r2_of_one_sample_is_not_a_number_and_is_left_out_of_the_mean() -> None:
    users = scored(Regression(), *NUMBERS)
    assert users.values(R2).isnan().tolist() == [False, False, False, True]
    assert users.mean(R2) == pytest.approx(float(users.values(R2)[:3].mean()))


def test_where_less_is_better_the_worst_users_are_those_with_most() -> None:
    values = torch.arange(1.0, 21.0, dtype=torch.float64)
    spread = distribution(values, MSE)
    assert (spread["worst10"], spread["p90"]) == (19.5, pytest.approx(18.1))


@EVERY
def test_row_losses_do_not_mix_rows(name: str) -> None:
    task, _, output, y, _ = CASES[name]
    one_by_one = torch.cat([task.row_losses(output[k : k + 1], y[k : k + 1]) for k in range(ROWS)])
    torch.testing.assert_close(task.row_losses(output, y), one_by_one)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("global/mse", "global MSE"),
        ("users/mse_max", "worst user's MSE"),
        ("users/mse_min", "best user's MSE"),
        ("users/mse_p90", "90 % quantile of users, MSE"),
        ("users/r2_min", "worst user's R²"),
        ("personal/pooled_ppl", "personal perplexity, pooled"),
        ("min_user/mae", "min-user MAE"),
        ("halftime/mse", "MSE at half time"),
        ("global/mine", "global/mine"),
    ],
)
def test_words_of_a_measure_are_those_of_accuracy_with_its_own(name: str, label: str) -> None:
    assert metric(name).label == label


def test_words_say_which_way_is_better_and_in_which_unit() -> None:
    found = [(metric(name).unit, metric(name).best) for name in ("users/mse_max", "users/r2_var", "val/ppl")]
    assert found == [("", "min"), ("", "min"), ("", "min")]


def test_a_measure_that_is_there_with_another_meaning_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'mse' exists already.*another name"):
        type("Mine", (Regression,), {"measures": (Measure("mse", "score", MSE.rows, unit="share"),)})


@EVERY
def test_no_rows_add_up_to_nothing(name: str) -> None:
    task, measure, output, y, _ = CASES[name]
    none = {part: rows.sum(0) for part, rows in task.row_sums(output[:0], y[:0]).items()}
    assert none[measure.name].tolist() == [0.0] * task.row_sums(output, y)[measure.name].shape[1]
    assert task.row_losses(output[:0], y[:0]).shape == (0,)


@pytest.mark.parametrize("name", ["loss", "near_max", "", "user acc"])
def test_a_measure_whose_name_would_be_taken_for_another_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="letters and digits that no other metric has"):
        type("Mine", (Regression,), {"measures": (Measure(name, "score", MSE.rows),)})
