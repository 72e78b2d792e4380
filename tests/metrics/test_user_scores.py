"""Laws of what is measured: the formulas against NumPy, and one pooled pass against a plain loop over users."""

from collections.abc import Mapping
from math import ceil, nan

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray
from torch import Tensor, nn
from torchmetrics.functional.classification import multiclass_accuracy

import fedlit.engines.forward
from fedlit import Client, Ditto, FedAvg, FederatedDataModule, PerFedAvg, PFedMe, Softmax
from fedlit.client.states import ClientStates
from fedlit.data.partition.base import Parts
from fedlit.errors import ConfigError
from fedlit.evaluation.evaluator import Evaluator
from fedlit.evaluation.round_evaluator import EvaluationOptions, RoundEvaluator
from fedlit.evaluation.round_metrics import extreme_user_metrics
from fedlit.evaluation.user_models import UserModels
from fedlit.metrics.measures import ACCURACY
from fedlit.metrics.user_scores import UserScores, by_user, distribution, entropy, first_round_at, gini
from tests.problems import CLASSES, FEATURES, run, tiny_data, tiny_net, weights_of
from tests.server import make_cohort

Floats = NDArray[np.float64]

ACCURACIES = npst.arrays(np.float64, st.integers(1, 40), elements=st.floats(0, 1))
OF_SEVERAL = npst.arrays(np.float64, st.integers(2, 40), elements=st.floats(0, 1))
PATIENT = settings(deadline=None, max_examples=50)  # a busy machine is not a failure


# ---- formulas --------------------------------------------------------------------------------------------------------


def gini_by_pairs(accuracy: Floats) -> float:
    """Half the mean absolute difference of all pairs over the mean."""
    differences = np.abs(accuracy[:, None] - accuracy[None, :]).mean()
    return float(differences / (2 * accuracy.mean()))


def entropy_by_definition(accuracy: Floats) -> float:
    share = accuracy / accuracy.sum()
    logarithms = np.log(share, out=np.zeros_like(share), where=share > 0)
    return float(-(share * logarithms).sum() / np.log(len(accuracy)))


@PATIENT
@given(ACCURACIES)
def test_distribution_is_that_of_numpy(accuracy: Floats) -> None:
    worst = np.sort(accuracy)[: max(1, len(accuracy) // 10)]
    expected = {
        "min": accuracy.min(),
        "max": accuracy.max(),
        "mean": accuracy.mean(),
        "var": accuracy.var(),
        "p10": np.quantile(accuracy, 0.1),
        "worst10": worst.mean(),
    }
    assert distribution(torch.from_numpy(accuracy)) == pytest.approx(expected, abs=1e-12)


@PATIENT
@given(ACCURACIES.filter(lambda accuracy: accuracy.sum() > 1e-6))
def test_gini_is_half_the_relative_mean_difference_of_all_pairs(accuracy: Floats) -> None:
    assert gini(torch.from_numpy(accuracy)) == pytest.approx(gini_by_pairs(accuracy), abs=1e-9)


@PATIENT
@given(OF_SEVERAL.filter(lambda accuracy: accuracy.sum() > 1e-6))
def test_entropy_is_that_of_the_users_shares_over_its_maximum(accuracy: Floats) -> None:
    assert entropy(torch.from_numpy(accuracy)) == pytest.approx(entropy_by_definition(accuracy), abs=1e-9)


@PATIENT
@given(st.floats(1e-3, 1), st.integers(2, 40))
def test_users_that_fare_alike_have_gini_zero_and_entropy_one(accuracy: float, users: int) -> None:
    alike = torch.full((users,), accuracy, dtype=torch.float64)
    assert (gini(alike), entropy(alike)) == pytest.approx((0, 1), abs=1e-9)


def test_gini_and_entropy_of_users_that_all_fail_are_those_of_users_that_fare_alike() -> None:
    assert (gini(torch.zeros(5)), entropy(torch.zeros(5))) == (0.0, 1.0)


@PATIENT
@given(ACCURACIES, st.data())
def test_no_measure_depends_on_the_order_of_users(accuracy: Floats, data: st.DataObject) -> None:
    shuffled = np.array(data.draw(st.permutations(accuracy.tolist())))
    one, other = (
        {**distribution(torch.from_numpy(values)), "gini": gini(torch.from_numpy(values))}
        for values in (accuracy, shuffled)
    )
    assert one == pytest.approx(other, abs=1e-12)


@PATIENT
@given(ACCURACIES)
def test_users_without_test_samples_are_left_out_of_every_measure(accuracy: Floats) -> None:
    known, some = torch.from_numpy(accuracy), torch.from_numpy(np.concatenate([[nan], accuracy, [nan]]))
    assert distribution(some) == distribution(known)
    assert (gini(some), entropy(some)) == (gini(known), entropy(known))


def scores(hits: list[int], counts: list[int]) -> UserScores:
    right, samples = (torch.tensor(values, dtype=torch.float64) for values in (hits, counts))
    return UserScores({"acc": right.unsqueeze(1)}, right, samples)


def test_mean_accuracy_counts_every_user_once() -> None:
    assert scores([1, 6], [2, 8]).mean(ACCURACY) == pytest.approx((1 / 2 + 6 / 8) / 2)


def test_pooled_accuracy_counts_every_sample_once() -> None:
    assert scores([1, 6], [2, 8]).pooled(ACCURACY) == pytest.approx(7 / 10)


def test_users_without_test_samples_are_left_out_of_the_mean_accuracy() -> None:
    assert scores([1, 0, 6], [2, 0, 8]).mean(ACCURACY) == pytest.approx((1 / 2 + 6 / 8) / 2)


def test_sums_by_user_are_those_of_bincount() -> None:
    rng = np.random.default_rng(1)
    values, owners = rng.normal(size=50), rng.integers(5, size=50)
    sums = by_user(torch.from_numpy(values), torch.from_numpy(owners), 7)
    np.testing.assert_allclose(sums.numpy(), np.bincount(owners, values, minlength=7), atol=1e-12)


@pytest.mark.parametrize(("threshold", "round"), [(0.1, 0), (0.4, 4), (0.5, 4), (0.9, None)])
def test_first_round_at_a_threshold_is_the_first_that_reaches_it(threshold: float, round: int | None) -> None:
    assert first_round_at(threshold, [0, 2, 4, 6], [0.1, 0.3, 0.5, 0.4]) == round


@pytest.mark.parametrize(("user", "accuracy"), [("min_user", 0.2), ("max_user", 0.4)])
def test_min_and_max_user_are_the_cohorts_by_size_and_ties_go_to_the_lowest_id(user: str, accuracy: float) -> None:
    cohort = make_cohort([7, 3, 3, 7], clients=[9, 5, 2, 4])
    users = scores([k for k in range(10)], [10] * 10)
    assert extreme_user_metrics(cohort, users, [ACCURACY])[f"{user}/acc"] == pytest.approx(accuracy)


# ---- one pass over all users -----------------------------------------------------------------------------------------


class Overlapping(FederatedDataModule):
    """Client 1 shares rows with client 0, client 2 has a single row and so no test."""

    def build(self) -> tuple[dict[str, Tensor], Parts]:
        rng = np.random.default_rng(3)
        store = {"x": torch.from_numpy(rng.normal(size=(40, 5))), "y": torch.from_numpy(rng.integers(3, size=40))}
        return store, Parts([np.arange(25), np.arange(15, 39), np.array([39])])


class Counting(FedAvg):
    """Counts the rows of every pass."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.passes: list[int] = []

    def output(self, params, x):
        self.passes.append(len(x))
        return super().output(params, x)


@pytest.fixture
def data() -> Overlapping:
    data = Overlapping(test_fraction=0.4, val_fraction=0.2)
    data.setup()
    return data


@pytest.fixture
def client() -> Counting:
    return Counting(tiny_net())


@pytest.fixture
def evaluator(client: Counting, data: Overlapping) -> Evaluator:
    return Evaluator(client, data)


def measured(net: nn.Module, data: FederatedDataModule, rows: Tensor) -> tuple[float, float]:
    """Sums of hits and losses of some rows, one after the other."""
    net.requires_grad_(False)
    hits = losses = 0.0
    for row in rows:
        logits = net(data.store["x"][row][None])
        hits += float(logits.argmax() == data.store["y"][row])
        losses += float(nn.functional.cross_entropy(logits, data.store["y"][row][None]))
    return hits, losses


def other_net() -> Softmax:
    return tiny_net(seed=11)


def test_pooled_pass_gives_every_user_the_scores_of_a_loop_over_users(
    evaluator: Evaluator, client: Counting, data: Overlapping
) -> None:
    _, users = evaluator.global_model(evaluator.client.net.state_dict())
    expected = np.array([measured(client.net, data, rows) for rows in data.everyone.test])
    np.testing.assert_allclose(users.sums["acc"][:, 0].numpy(), expected[:, 0])
    np.testing.assert_allclose(users.losses.numpy(), expected[:, 1], rtol=1e-12)


@pytest.mark.parametrize(("name", "rows"), [("global", "global_test"), ("val", "global_val")], ids=["test", "val"])
def test_pooled_metrics_count_every_sample_once(
    evaluator: Evaluator, client: Counting, data: Overlapping, name: str, rows: str
) -> None:
    metrics, _ = evaluator.global_model(evaluator.client.net.state_dict())
    hits, losses = measured(client.net, data, getattr(data, rows))
    count = len(set(getattr(data, rows).tolist()))
    assert (metrics[f"{name}/acc"], metrics[f"{name}/loss"]) == pytest.approx((hits / count, losses / count), rel=1e-12)


def test_user_metrics_are_the_distribution_of_own_test_accuracy(evaluator: Evaluator) -> None:
    metrics, users = evaluator.global_model(evaluator.client.net.state_dict())
    known = users.values(ACCURACY)[:2].numpy()
    assert metrics["global/user_acc"] == pytest.approx(known.mean())
    assert (metrics["users/acc_min"], metrics["users/acc_max"]) == (known.min(), known.max())


def test_user_without_test_samples_has_no_accuracy(evaluator: Evaluator) -> None:
    _, users = evaluator.global_model(evaluator.client.net.state_dict())
    assert users.values(ACCURACY).isnan().tolist() == [False, False, True]


def test_no_validation_data_means_no_validation_metrics(client: Counting) -> None:
    data = tiny_data()
    data.setup()
    metrics, _ = Evaluator(client, data).global_model(client.net.state_dict())
    assert not [name for name in metrics if name.startswith("val/")]


def test_evaluation_in_small_chunks_gives_the_same_numbers(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = evaluator.global_model(evaluator.client.net.state_dict())
    monkeypatch.setattr(fedlit.engines.forward, "CHUNK", 4)
    chunked, _ = evaluator.global_model(evaluator.client.net.state_dict())
    assert chunked == pytest.approx(whole, rel=1e-12, abs=1e-15)


def test_every_row_that_any_test_needs_is_scored_once(
    evaluator: Evaluator, client: Counting, data: Overlapping
) -> None:
    evaluator.global_model(evaluator.client.net.state_dict())
    assert sum(client.passes) == len(data.global_test) + len(data.global_val)


def test_evaluation_sees_the_net_in_evaluation_mode_and_leaves_it_in_training_mode() -> None:
    modes = []

    class Noting(Softmax):
        def forward(self, x: Tensor) -> Tensor:
            modes.append(self.training)
            return super().forward(x)

    data, net = tiny_data(), Noting(FEATURES, CLASSES).double()
    data.setup()
    Evaluator(FedAvg(net), data).global_model(net.state_dict())
    assert (set(modes), net.training) == ({False}, True)


@pytest.fixture
def round_evaluator(client: Counting, data: Overlapping) -> RoundEvaluator:
    return RoundEvaluator(
        client, data, UserModels(lambda user: client.net.state_dict(), ClientStates()), EvaluationOptions()
    )


def trained(round_evaluator: RoundEvaluator, *users: int) -> None:
    """Give these users a model of their own."""
    rows = {f"local.{name}": value.expand(len(users), *value.shape) for name, value in other_net().state_dict().items()}
    round_evaluator.models.states.update(list(users), rows)
    round_evaluator.invalidate(users)


def test_kept_model_of_a_user_is_evaluated_on_its_own_test(round_evaluator: RoundEvaluator, data: Overlapping) -> None:
    _, shared = round_evaluator.evaluator.global_model(round_evaluator.client.net.state_dict())
    trained(round_evaluator, 1)
    local = round_evaluator.local_models(shared)
    assert (float(local.sums["acc"][1]), float(local.losses[1])) == pytest.approx(
        measured(other_net(), data, data.everyone.test[1])
    )


def test_user_without_a_kept_model_has_the_scores_of_the_global_one(round_evaluator: RoundEvaluator) -> None:
    _, shared = round_evaluator.evaluator.global_model(round_evaluator.client.net.state_dict())
    trained(round_evaluator, 1)
    local = round_evaluator.local_models(shared)
    assert (local.sums["acc"][0], local.losses[0]) == (shared.sums["acc"][0], shared.losses[0])


def test_kept_model_is_evaluated_again_only_when_it_changed(round_evaluator: RoundEvaluator, client: Counting) -> None:
    _, shared = round_evaluator.evaluator.global_model(round_evaluator.client.net.state_dict())
    tests = [len(rows) for rows in round_evaluator.data.everyone.test]
    scored = []
    for changed in ([0, 1], [], [1], [1]):
        client.passes.clear()
        if changed:
            trained(round_evaluator, *changed)
        round_evaluator.local_models(shared)
        scored.append(sum(client.passes))
    assert scored == [tests[0] + tests[1], 0, tests[1], tests[1]]


def test_kept_scores_stay_when_the_global_model_moves(round_evaluator: RoundEvaluator, client: Counting) -> None:
    _, shared = round_evaluator.evaluator.global_model(round_evaluator.client.net.state_dict())
    trained(round_evaluator, 0)
    before = round_evaluator.local_models(shared)
    with torch.no_grad():
        client.net.linear.weight.neg_()
    _, moved = round_evaluator.evaluator.global_model(round_evaluator.client.net.state_dict())
    after = round_evaluator.local_models(moved)
    assert (after.losses[0], after.losses[1]) == (before.losses[0], moved.losses[1])


@pytest.mark.parametrize(("client", "solves"), [(FedAvg, 1), (Ditto, 2)])
def test_client_steps_are_those_of_every_client_and_phase(client: type[Client], solves: int) -> None:
    data = tiny_data()
    local = client(tiny_net(), lr=0.1, batch_size=4, local_epochs=3)
    rows = run(local, data, rounds=2, clients_per_round=4).loop.history.rows
    steps = solves * sum(3 * ceil(size / 4) for size in data.sizes.tolist())
    assert [row.get("train/steps") for row in rows] == [None, steps, steps]


def test_extra_metrics_are_the_objective_over_all_training_data_and_its_gradient(
    client: Counting, data: Overlapping
) -> None:
    asked = EvaluationOptions(("global/train_loss", "global/grad_norm2"))
    models = UserModels(lambda user: client.net.state_dict(), ClientStates(), keeps_local=False)
    values = RoundEvaluator(client, data, models, asked).extra(client.net.state_dict())
    x, y = data.rows(data.store, data.everyone.train.joined)
    net = tiny_net()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    norm = sum(float((p.grad**2).sum()) for p in net.parameters() if p.grad is not None)
    assert values == pytest.approx({"global/train_loss": loss.item(), "global/grad_norm2": norm}, rel=1e-12)


def test_the_objective_with_equal_weights_is_the_plain_mean_over_clients(client: Counting, data: Overlapping) -> None:
    asked = EvaluationOptions(("global/train_loss_uniform", "global/grad_norm2_uniform"))
    models = UserModels(lambda user: client.net.state_dict(), ClientStates(), keeps_local=False)
    values = RoundEvaluator(client, data, models, asked).extra(client.net.state_dict())
    net = tiny_net()
    batches = [data.rows(data.store, rows) for rows in data.everyone.train]
    assert len({len(y) for _, y in batches}) > 1
    loss = torch.stack([nn.functional.cross_entropy(net(x), y) for x, y in batches]).mean()
    loss.backward()
    norm = sum(float((p.grad**2).sum()) for p in net.parameters() if p.grad is not None)
    expected = {"global/train_loss_uniform": loss.item(), "global/grad_norm2_uniform": norm}
    assert values == pytest.approx(expected, rel=1e-12)


def by_autograd(client: Client, model: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[float, float]:
    """(loss, squared norm of its gradient), with the l2 term."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in model.items()}
    loss = nn.functional.cross_entropy(torch.func.functional_call(tiny_net(), leaves, (x,)), y)
    loss = loss + client.l2 / 2 * sum((value**2).sum() for value in leaves.values())
    slopes = torch.autograd.grad(loss, list(leaves.values()))
    return loss.item(), sum(float((slope**2).sum()) for slope in slopes)


def test_users_own_training_loss_and_stationarity_are_of_their_own_models() -> None:
    asked = ("personal/train_loss", "local/grad_norm2")
    client = PFedMe(tiny_net(), prox=4.0, lr=0.1, batch_size=4, local_steps=2, l2=0.3)
    trainer = run(client, rounds=1, clients_per_round=2, extra_metrics=asked)
    data, states, z = trainer.loop.data, trainer.loop.states, weights_of(trainer)
    assert 0 < len(states.touched) < data.num_clients, "somebody trained, somebody did not"
    losses, norms, sizes = [], [], []
    for user, rows in enumerate(data.everyone.train):
        x, y = data.rows(data.store, rows)
        theta, w = (
            {name: states.row(f"{kind}.{name}", user) for name in z} if states.has(user) else z
            for kind in ("personal", "local")
        )
        losses.append(by_autograd(client, theta, x, y)[0] * len(rows))
        norms.append(by_autograd(client, w, x, y)[1])
        sizes.append(len(rows))
    row = trainer.loop.history.rows[-1]
    assert row["personal/train_loss"] == pytest.approx(sum(losses) / sum(sizes), rel=1e-10)
    assert row["local/grad_norm2"] == pytest.approx(sum(norms) / len(norms), rel=1e-10)


def test_the_training_loss_of_adapted_models_is_measured_after_their_step() -> None:
    asked = ("personal/train_loss",)
    still, moved = (
        run(PerFedAvg(tiny_net(), adapt_lr=rate, lr=0.1, batch_size=100), rounds=1, extra_metrics=asked, seed=0)
        for rate in (1e-12, 0.1)
    )
    first = [trainer.loop.history.rows[0]["personal/train_loss"] for trainer in (still, moved)]
    assert first[1] < first[0], "a step on all training rows lowers their loss"


@pytest.mark.parametrize("name", ["personal/train_loss", "local/grad_norm2"])
def test_what_is_asked_of_models_that_are_not_kept_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"asks for {name}.*store_local_models"):
        run(FedAvg(tiny_net(), lr=0.1), rounds=1, extra_metrics=(name,), store_local_models=False)


def test_accuracy_is_torchmetrics_accuracy(evaluator: Evaluator, client: Counting, data: Overlapping) -> None:
    metrics, _ = evaluator.global_model(evaluator.client.net.state_dict())
    x, y = data.rows(data.store, data.global_test)
    with torch.no_grad():
        theirs = multiclass_accuracy(client.net(x), y, num_classes=CLASSES, average="micro")
    assert metrics["global/acc"] == pytest.approx(float(theirs), rel=1e-6)
