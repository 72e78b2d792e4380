"""Passes for evaluation: the compiled form finds what the eager one finds; nobody's bits depend on their neighbours."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedlit import FedAvg, FedBC, LeNet, Softmax, TensorData
from fedlit.client.base import Client
from fedlit.client.tasks import LOSSES
from fedlit.data.base import FederatedDataModule
from fedlit.data.image_datasets import PictureData
from fedlit.engines import choose as choosing
from fedlit.engines import forward
from fedlit.engines.choose import EngineChoice, Request, choose
from fedlit.engines.compiler import missing_convolution
from fedlit.engines.forward import CHUNK, COMPILED_ROWS, CompiledForward, Forward, grouped
from fedlit.evaluation.evaluator import Evaluator
from fedlit.params import Params, clone, stack
from fedlit.ranks import Ranks, divide
from tests.problems import CLASSES, TinyConv, run, tiny_data, traced_program

SIZES = (1, 63, 64, 65, 0, 130, 7)
"""Rows of each model: less than a compiled pass, one, more, none."""
ALLOWED = {torch.float32: 1e-5, torch.float64: 1e-10}
DTYPES = list(ALLOWED)
needs_operators = pytest.mark.skipif(missing_convolution() is not None, reason=str(missing_convolution()))


class Sequences(nn.Module):
    """Scores of every token at every place of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Embedding(CLASSES, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, places, tokens)."""
        scores: Tensor = self.head(torch.relu(self.one(x)))
        return scores


class Normed(TinyConv):
    """With BatchNorm, which mixes no rows in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        pooled = nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        logits: Tensor = self.head(pooled.flatten(1))
        return logits


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).normal(size=shape)


def labels(*shape: int) -> np.ndarray:
    return np.random.default_rng(6).integers(CLASSES, size=shape)


def tokens() -> np.ndarray:
    found = labels(300, 6)
    found[::3, 4:] = -100
    return found


CASES: dict[str, tuple[Callable[[], nn.Module], np.ndarray, np.ndarray, str]] = {
    "pictures": (TinyConv, drawn(300, 1, 8, 8), labels(300), "classification"),
    "BatchNorm": (Normed, drawn(300, 1, 8, 8), labels(300), "classification"),
    "numbers": (lambda: nn.Linear(5, 2), drawn(300, 5), drawn(300, 2), "regression"),
    "tokens": (Sequences, labels(300, 6), tokens(), "next_token"),
}


_COUNTED = {"classification": "num_classes", "next_token": "num_tokens"}


def problem(case: str, dtype: torch.dtype) -> tuple[Client, TensorData]:
    """A client with its net in evaluation mode, and data of which all models share the rows."""
    net, x, y, task = CASES[case]
    torch.manual_seed(1)
    owners = np.repeat(np.arange(3), 100)
    counted = {_COUNTED[task]: CLASSES} if task in _COUNTED else {}
    data = TensorData(x, y, owners, test_fraction=0.25, **counted)
    data.setup()
    data.cast(dtype)
    client = FedAvg(net().to(dtype), task=task)
    client.net.eval()
    return client, data


def some_models(client: Client, sizes: Sequence[int] = SIZES) -> list[tuple[Params, Tensor]]:
    """Models that differ, each with so many rows."""
    generator = torch.Generator().manual_seed(2)
    whole = client.net.state_dict()

    def moved(value: Tensor) -> Tensor:
        noise = torch.rand(value.shape, generator=generator, dtype=torch.float64)
        return value + noise.to(value.dtype) if value.is_floating_point() else value.clone()

    models = [{name: moved(value) for name, value in whole.items()} for _ in sizes]
    return [
        (model, torch.randint(300, (size,), generator=generator)) for model, size in zip(models, sizes, strict=True)
    ]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the compiler is given, run as it stands."""
    monkeypatch.setattr(forward, "compile_program", traced_program)


def assert_same_scores(found: Params, expected: Params, dtype: torch.dtype) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        torch.testing.assert_close(found[name], value, rtol=ALLOWED[dtype], atol=ALLOWED[dtype])


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_the_program_finds_what_a_pass_of_each_model_by_itself_finds(
    case: str, dtype: torch.dtype, threads: int
) -> None:
    client, data = problem(case, dtype)
    models = some_models(client)
    compiled = CompiledForward(client, data.plain_rows, threads, direct_convolution=False)
    with torch.no_grad():
        alone = [client.score(model, *data.rows(data.store, rows)) for model, rows in models]
    expected = {name: torch.cat([part[name] for part in alone]) for name in alone[0]}
    assert_same_scores(compiled(data.store, models), expected, dtype)
    assert compiled.why_not is None
    assert_same_scores(Forward(client, data.plain_rows)(data.store, models), expected, dtype)


@needs_operators
@pytest.mark.parametrize("case", ["pictures", pytest.param("BatchNorm", marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)], ids=str)
def test_compiled_passes_with_direct_convolutions_count_the_same_hits(case: str, dtype: torch.dtype) -> None:
    client, data = problem(case, dtype)
    models = some_models(client)
    compiled = CompiledForward(client, data.plain_rows, threads=2)
    found, expected = (kind(data.store, models) for kind in (compiled, Forward(client, data.plain_rows)))
    assert compiled.why_not is None
    assert_same_scores(found, expected, dtype)
    assert torch.equal(found["acc"], expected["acc"])
    again = CompiledForward(client, data.plain_rows, threads=1)(data.store, models[5:6])
    assert all(torch.equal(value, found[name][193:323]) for name, value in again.items())  # threads, neighbours


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("case", CASES)
def test_bits_do_not_depend_on_who_is_measured_beside(case: str, compiled: bool) -> None:
    client, data = problem(case, torch.float32)
    form = CompiledForward(client, data.plain_rows, 2) if compiled else Forward(client, data.plain_rows)
    evaluator = Evaluator(client, data, forward=form)
    models = some_models(client, (5, 21, 64, 3, 2 * CHUNK + 9, 100))
    together = evaluator.sums_of_each(models)
    alone = stack([evaluator.sums(*model) for model in models])
    assert all(torch.equal(together[name], alone[name]) for name in alone)


class Halves(Ranks):
    """Two ranks, played by one process."""

    size = 2

    def divided(
        self, costs: Sequence[float], compute: Callable[[list[int]], Params], lengths: Sequence[int] | None = None
    ) -> Params:
        counts = list(lengths or [1] * len(costs))
        found: dict[int, Params] = {}
        for share in divide(costs, 2):
            if share:
                rows, start = compute(share), 0
                for item in share:
                    end = start + counts[item]
                    found[item] = {name: value[start:end] for name, value in rows.items()}
                    start = end
        return {name: torch.cat([found[item][name] for item in range(len(costs))]) for name in found[0]}


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_ranks_find_the_bits_of_one_process(compiled: bool) -> None:
    client, data = problem("pictures", torch.float32)
    model = some_models(client)[0][0]
    rows = torch.arange(3 * CHUNK + 77) % 300

    def losses(ranks: Ranks) -> float:
        form = CompiledForward(client, data.plain_rows, 2, ranks) if compiled else Forward(client, data.plain_rows)
        return Evaluator(client, data, ranks, forward=form).loss(model, rows)

    assert losses(Halves()) == losses(Ranks())


class Branching(TinyConv):
    """Looks at a value, but only in evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits = super().forward(x)
        return logits * 2 if not self.training and float(logits.abs().max()) > 1 else logits


@pytest.mark.usefixtures("traced")
def test_a_net_that_cannot_be_traced_is_measured_eagerly_and_the_reason_is_kept(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CASES, "branch", (Branching, *CASES["pictures"][1:]))
    client, data = problem("branch", torch.float64)
    models = some_models(client, (20, 70))
    compiled = CompiledForward(client, data.plain_rows, 2)
    with caplog.at_level(logging.INFO, "fedlit"):
        found = [compiled(data.store, models) for _ in range(2)][1]
    expected = Forward(client, data.plain_rows)(data.store, models)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert compiled.why_not is not None
    assert [record.getMessage() for record in caplog.records].count(
        f"The evaluation is not compiled ({compiled.why_not}). It takes longer, with the same results."
    ) == 1


@pytest.mark.usefixtures("traced")
def test_a_model_of_other_shapes_than_the_first_is_measured_eagerly() -> None:
    client, data = problem("numbers", torch.float32)
    compiled = CompiledForward(client, data.plain_rows, 1)
    [(model, rows)] = some_models(client, (10,))
    compiled(data.store, [(model, rows)])
    other = {name: value.double() for name, value in model.items()}
    data.cast(torch.float64)
    found = compiled(data.store, [(other, rows)])
    assert found[LOSSES].dtype == torch.float64


@pytest.mark.usefixtures("traced")
def test_an_error_in_one_thread_ends_the_others_and_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    client, data = problem("numbers", torch.float32)
    models = some_models(client, (10 * COMPILED_ROWS,))

    class Lost(Ranks):
        def heartbeat(self) -> None:
            raise RuntimeError("another rank failed")

    with pytest.raises(RuntimeError, match="another rank failed"):
        CompiledForward(client, data.plain_rows, 3, Lost())(data.store, models)


def test_groups_hold_few_rows_and_few_models(monkeypatch: pytest.MonkeyPatch) -> None:
    model = {"weight": torch.zeros(100)}
    rows = [torch.zeros(size, dtype=torch.int64) for size in (600, 300, 200, 3000, 0, 5)]
    sizes = [[len(piece.rows) for piece in group] for group in grouped([(model, own) for own in rows], CHUNK)]
    assert sizes == [[600, 300], [200], [1024], [1024], [952, 0, 5]]
    monkeypatch.setattr(forward, "HELD_BYTES", 900)
    groups = list(grouped([(clone(model), rows[-1]) for _ in range(5)], CHUNK))
    assert [len(group) for group in groups] == [2, 2, 1]


# ---- who is compiled -------------------------------------------------------------------------------------------------


def chosen(client: Client, sample: Sequence[int], measured_rows: int, **request: Any) -> EngineChoice:
    asked = Request(**{"engine": "vectorized", "compiled": True, **request})
    sizes = np.full(6, 10)
    return choose(asked, client, sizes, 4, 10, torch.rand(*sample), evaluated_rows=CHUNK, measured_rows=measured_rows)


@needs_operators
def test_the_evaluation_is_compiled_where_the_training_has_direct_convolutions_and_it_pays() -> None:
    client = FedAvg(LeNet(), batch_size=20)
    long, short = chosen(client, (3, 32, 32), 200_000), chosen(client, (3, 32, 32), 20_000)
    assert (long.evaluation, short.evaluation) == ("compiled", "eager")
    assert short.evaluation_why == "about 1 s in the run: compiling would not pay"
    assert chosen(client, (3, 32, 32), 200_000, compiled=False).evaluation == "eager"
    dense = chosen(FedAvg(Softmax(5, 3), batch_size=20), (5,), 10**12)
    assert (dense.evaluation, dense.evaluation_why) == (
        "eager",
        "the gain is in direct convolutions, which the training does not have",
    )


def test_a_run_that_was_recorded_before_is_resumed_with_the_eager_evaluation() -> None:
    names = {"engine": "vectorized", "lanes": 1, "workers": 2, "compiled": True, "capacity": 64, "threads": 1}
    assert EngineChoice(**names, why="", convolution="direct").evaluation == "eager"


@needs_operators
def test_a_resumed_run_with_a_compiled_evaluation_has_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "MEASURING_PAYS_S", 0.0)

    def trained(folder: str, rounds: int, resume: bool = False) -> list[dict[str, float]]:
        torch.manual_seed(4)
        client = FedBC(TinyConv().double(), batch_size=8, lr=0.1)
        data = tiny_data(sizes=(60, 90, 150, 31), shape=(1, 8, 8), val_fraction=0.1)
        options = {"engine": "vectorized", "compiled": True, "eval_every": 1, "run": str(tmp_path / folder)}
        fitted = run(
            client, data, rounds=rounds, clients_per_round=2, **options, **({"resume": True} if resume else {})
        )
        assert fitted.summary["evaluation"] == "compiled"
        return [{k: v for k, v in row.items() if "time/" not in k} for row in fitted.loop.history.rows]

    whole = trained("whole", 4)
    trained("parts", 2)
    assert trained("parts", 4, resume=True) == whole


# ---- rows that are not augmented -------------------------------------------------------------------------------------


class Noise:
    def rows(self, store: dict[str, Tensor], index: Tensor) -> tuple[Tensor, Tensor]:
        x, y = super().rows(store, index)  # type: ignore[misc]  # a mixin
        return x + 1, y


def test_data_that_override_rows_alone_are_measured_with_them() -> None:
    class Direct(PictureData):
        def rows(self, store: dict[str, Tensor], index: Tensor) -> tuple[Tensor, Tensor]:
            return super().rows(store, index)

    class Mixed(Noise, PictureData):
        pass

    assert Direct.plain_rows is Mixed.plain_rows is FederatedDataModule.plain_rows
    assert PictureData.plain_rows is not FederatedDataModule.plain_rows
