"""Fine-tuning for epochs: a plain PyTorch loop as oracle, draws, groups, what stays, and what is refused."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fedlit import MLP, Ditto, FedAvg, FedBC, FederatedTrainer, PerFedAvg, PFedMe
from fedlit.client.step import Adaptation
from fedlit.errors import ConfigError
from fedlit.evaluation.round_evaluator import EvaluationOptions, RoundEvaluator
from fedlit.keys import Purpose, generator
from fedlit.report.tables import choose_metrics
from fedlit.results.runs import read_run
from tests.problems import CLASSES, FEATURES, largest_difference, run, tiny_data, weights_of

BATCH, L2 = 4, 0.3
LOCAL: dict[str, Any] = {"lr": 0.1, "batch_size": BATCH, "local_epochs": 1, "l2": L2}
EPOCHS = Adaptation(0.2, epochs=3)
Model = dict[str, Tensor]


def net(dropout: float = 0.0) -> MLP:
    torch.manual_seed(5)
    return MLP(FEATURES, (6,), CLASSES, dropout=dropout).double()


class Normed(nn.Module):
    """BatchNorm between two layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.body, self.norm, self.head = nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.norm(self.body(x)).relu())
        return output


class Branching(MLP):
    """Asks for a number in a tensor, so that torch cannot map it over models."""

    def forward(self, x: Tensor) -> Tensor:
        """The output, doubled where its sum is not above 0."""
        output: Tensor = super().forward(x)
        return output if float(output.detach().sum()) > 0 else 2 * output


class Recurrent(nn.Module):
    """An LSTM over the features."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.lstm, self.head = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.lstm(x.unsqueeze(2))[0][:, -1])
        return output


def finetuned(trainer: FederatedTrainer, step: Adaptation, users: Sequence[int], round: int = 7) -> list[Model]:
    """The personal models of these users after a fine-tuning, as one group."""
    evaluator = trainer.loop.round_evaluator
    group = evaluator.adapter.group(users, evaluator.models.personal, [step], round)
    return [dict(model) for model in group]


def by_hand(trainer: FederatedTrainer, step: Adaptation, user: int, names: Sequence[str], round: int = 7) -> Model:
    """torch.optim.SGD over shuffled passes of the user's rows, with the draws that its key gives."""
    data, net = trainer.loop.data, trainer.loop.client.net.eval()
    model = {name: value.clone() for name, value in trainer.loop.round_evaluator.models.personal(user).items()}
    moved = [model[name].requires_grad_() for name in names]
    optimizer = torch.optim.SGD(moved, lr=step.lr)
    rows = getattr(data.everyone, step.on)[user]
    assert step.epochs is not None
    passes = np.tile(rows.numpy(), (step.epochs, 1))
    generator(0, Purpose.FINETUNE, round=round, client=user).permuted(passes, axis=1, out=passes)
    for shuffled in passes:
        for batch in torch.split(torch.from_numpy(shuffled), BATCH):
            x, y = data.rows(data.store, batch)
            loss = cross_entropy(functional_call(net, model, (x,)), y)
            loss = loss + L2 / 2 * sum((model[name] ** 2).sum() for name, _ in net.named_parameters())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return {name: value.detach() for name, value in model.items()}


ALGORITHMS = {
    "FedAvg": lambda: FedAvg(net(), **LOCAL),
    "dropout": lambda: FedAvg(net(dropout=0.5), **LOCAL),
    "FedBC": lambda: FedBC(net(), **LOCAL),
    "Ditto": lambda: Ditto(net(), **LOCAL),
    "pFedMe": lambda: PFedMe(net(), **LOCAL),
    "Per-FedAvg": lambda: PerFedAvg(net(), **LOCAL),
    "a personal head": lambda: FedAvg(Normed().double(), keep_local="head", **LOCAL),
    "BatchNorm": lambda: FedAvg(Normed().double(), **LOCAL),
    "LSTM": lambda: FedAvg(Recurrent().double(), **LOCAL),
    "a branch": lambda: FedAvg(Branching(FEATURES, (6,), CLASSES).double(), **LOCAL),
}


@pytest.mark.parametrize("on", ["train", "test"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_fine_tuning_is_a_plain_loop_of_sgd_in_evaluation_mode(name: str, on: Any) -> None:
    trainer, step = run(ALGORITHMS[name](), rounds=2), Adaptation(0.2, on, epochs=3)
    names = [name for name, _ in trainer.loop.client.net.named_parameters()]
    users = [3, 2, 1, 0]  # from the most rows to the fewest
    for user, model in zip(users, finetuned(trainer, step, users), strict=True):
        assert largest_difference(model, by_hand(trainer, step, user, names)) < 1e-10


def test_a_net_that_cannot_be_mapped_over_models_is_fine_tuned_user_after_user() -> None:
    for name, is_stacked in (("FedAvg", True), ("BatchNorm", True), ("LSTM", True), ("a branch", False)):
        trainer = run(ALGORITHMS[name](), rounds=1)
        finetuned(trainer, EPOCHS, [3, 2])
        assert (trainer.loop.round_evaluator.adapter.why_not_stacked is None) == is_stacked


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ("head", ["head.weight", "head.bias"]),
        ("head.bias", ["head.bias"]),
        ("*.bias", ["body.bias", "norm.bias", "head.bias"]),
        ("[bn]o*", ["body.weight", "body.bias", "norm.weight", "norm.bias"]),
    ],
)
@pytest.mark.parametrize("users", [[3, 2, 1, 0], [2]], ids=["a group", "alone"])
def test_a_part_is_fine_tuned_alone(part: str, names: list[str], users: list[int]) -> None:
    trainer, step = run(ALGORITHMS["BatchNorm"](), rounds=2), Adaptation(0.2, epochs=2, part=part)
    before = trainer.loop.round_evaluator.models.personal
    for user, model in zip(users, finetuned(trainer, step, users), strict=True):
        assert largest_difference(model, by_hand(trainer, step, user, names)) < 1e-10
        moved = {name for name, value in before(user).items() if not torch.equal(value, model[name])}
        assert moved == set(names), "buffers, and what is not named, keep their bits"


def test_a_users_draws_depend_on_round_and_user_alone() -> None:
    trainer = run(ALGORITHMS["FedAvg"](), rounds=2)
    together = dict(zip((3, 2, 1, 0), finetuned(trainer, EPOCHS, [3, 2, 1, 0]), strict=True))
    for users in ([2, 1], [3, 0], [1]):
        for user, model in zip(users, finetuned(trainer, EPOCHS, users), strict=True):
            assert largest_difference(model, together[user]) < 1e-12
    other = finetuned(trainer, EPOCHS, [3, 2, 1, 0], round=8)[0]
    assert largest_difference(other, together[3]) > 1e-6


def test_groups_depend_on_the_data_alone_and_hold_everybody_once() -> None:
    trainer = run(ALGORITHMS["FedAvg"](), rounds=1)
    adapter = trainer.loop.round_evaluator.adapter
    assert adapter.groups([0, 1, 2, 3], [EPOCHS]) == adapter.groups([2, 0, 3, 1], [EPOCHS]) == [[3, 2, 1, 0]]
    assert adapter.groups([2, 0], [Adaptation(0.1)]) == [[2], [0]], "one step is taken as ever: each user alone"


def test_a_user_without_rows_keeps_its_model() -> None:
    trainer = run(FedAvg(net(), **LOCAL), tiny_data((9, 1, 12)), clients_per_round=2)
    adapter, models = trainer.loop.round_evaluator.adapter, trainer.loop.round_evaluator.models
    step = Adaptation(0.2, "test", epochs=2)
    empty = [user for user in range(3) if not trainer.loop.data.everyone.test.sizes[user]]
    assert empty, "the smallest user has no test"
    [group] = adapter.groups(range(3), [step])
    after = dict(zip(group, finetuned(trainer, step, group), strict=True))
    assert all(largest_difference(after[user], models.personal(user)) == 0 for user in empty)


def test_one_step_and_one_epoch_over_a_single_batch_agree() -> None:
    data = tiny_data((5, 5, 5))
    options: dict[str, Any] = {"clients_per_round": 2, "finetune_lr": 1.5}
    one, epoch = (run(FedBC(net(), **LOCAL), data, **options, finetune_epochs=count) for count in (None, 1))
    name = "finetuned/pooled_acc"
    assert one.loop.history.series(name) == epoch.loop.history.series(name)


@pytest.mark.parametrize("start", ["personal", "global"])
def test_the_metric_is_the_accuracy_of_the_fine_tuned_models(start: Any) -> None:
    trainer = run(FedAvg(net(), **LOCAL), rounds=2, finetune_lr=0.5, finetune_epochs=4, finetune_from=start)
    evaluator, everyone = trainer.loop.round_evaluator, trainer.loop.data.everyone
    model_of = evaluator.models.personal if start == "personal" else lambda user: weights_of(trainer)
    step = Adaptation(0.5, epochs=4)
    [group] = evaluator.adapter.groups([0, 1, 2, 3], [step])
    values = []
    for user, model in zip(group, evaluator.adapter.group(group, model_of, [step], 2), strict=True):
        x, y = trainer.loop.data.rows(trainer.loop.data.store, everyone.test[user])
        output = functional_call(trainer.loop.client.net, dict(model), (x,))
        values.append(float((output.argmax(1) == y).double().mean()))
    assert trainer.loop.history.rows[-1]["finetuned/acc"] == pytest.approx(sum(values) / 4, abs=1e-12)
    said = "z after 4 epochs" if start == "global" else "4 epochs"
    assert trainer.summary["finetuned"] == f"{said} of rate 0.5 on train data"


def test_fine_tuning_moves_no_bit_of_the_run() -> None:
    plain = run(FedBC(net(dropout=0.3), **LOCAL), rounds=3)
    tuned = run(
        FedBC(net(dropout=0.3), **LOCAL), rounds=3, finetune_lr=0.5, finetune_epochs=2, finetune_part="layers.0"
    )
    assert largest_difference(weights_of(plain), weights_of(tuned)) == 0
    rows, others = plain.loop.history.rows, tuned.loop.history.rows
    for row, other in zip(rows, others, strict=True):
        same = {name for name in row if not name.startswith("time/")} - {
            "comm/eval_mb"
        }  # fine-tuned scores are sent too
        assert {name: other[name] for name in same} == {name: row[name] for name in same}
        assert {name for name in other if not name.startswith(("finetuned/", "time/"))} - {"comm/eval_mb"} == same


def test_a_resumed_run_has_the_same_bits(tmp_path: Any) -> None:
    options: dict[str, Any] = {"finetune_lr": 0.5, "finetune_epochs": 2, "run": None}
    whole = run(FedBC(net(), **LOCAL), rounds=4, **options)
    run(FedBC(net(), **LOCAL), rounds=2, **(options | {"run": tmp_path}))
    again = run(FedBC(net(), **LOCAL), rounds=4, **(options | {"run": tmp_path, "resume": True}))
    for name in ("finetuned/acc", "finetuned/pooled_acc"):
        assert whole.loop.history.series(name) == again.loop.history.series(name)


def test_measuring_some_users_again_measures_all_fine_tuned_models_anew() -> None:
    trainer = run(FedBC(net(), **LOCAL), rounds=2, finetune_lr=0.5, finetune_epochs=2)
    evaluator: RoundEvaluator = trainer.loop.round_evaluator
    with evaluator.evaluator.evaluating():
        _, shared = evaluator.evaluator.global_model(trainer.loop.state.global_model)
        kept = evaluator.finetuned_models(shared, 2)
        fresh = RoundEvaluator(
            evaluator.client, evaluator.data, evaluator.models, EvaluationOptions((), (Adaptation(0.5, epochs=2),))
        ).finetuned_models(shared, 2)
    assert all(torch.equal(kept.sums[name], fresh.sums[name]) for name in kept.sums)
    assert torch.equal(kept.losses, fresh.losses)


def test_a_comparison_has_the_column_where_a_run_was_fine_tuned(tmp_path: Any) -> None:
    tuning = {"finetune_lr": 0.5, "finetune_epochs": 1}
    run(FedBC(net(), **LOCAL), rounds=1, run=tmp_path / "plain")
    run(FedBC(net(), **LOCAL), rounds=1, run=tmp_path / "tuned", **tuning)
    plain, tuned = read_run(tmp_path / "plain"), read_run(tmp_path / "tuned")
    assert "finetuned/acc" in choose_metrics([plain, tuned], [])
    assert "finetuned/acc" not in choose_metrics([plain], [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"finetune_epochs": 2}, "trainer.finetune_epochs is 2, but trainer.finetune_lr is not given"),
        ({"finetune_part": "head"}, "trainer.finetune_part is head, but trainer.finetune_lr is not given"),
        ({"finetune_from": "global"}, "trainer.finetune_from is global, but trainer.finetune_lr is not given"),
        ({"finetune_lr": 0.1, "finetune_epochs": 0}, "trainer.finetune_epochs is 0; give 1 or more"),
        ({"finetune_lr": []}, "trainer.finetune_lr is an empty list"),
        ({"finetune_lr": [0.1, 0.1]}, r"trainer.finetune_lr is \[0.1, 0.1\]; give each value once"),
        ({"finetune_lr": [0.1, -1.0]}, "trainer.finetune_lr is -1.0; give 0 or more"),
        (
            {"finetune_lr": [0.1, 1.0]},
            "several values, of which validation takes the best, but no user has validation samples",
        ),
        ({"finetune_lr": 0.1, "finetune_part": "hed"}, r"finetune_part is 'hed', but no parameter .* mean 'head'\?"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(FedAvg(Normed().double(), **LOCAL), **options)
