"""Recurrent layers and attention in every engine: written-out layers against torch's, engines against each other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.utils._pytree import tree_leaves

from fedlit import CharLSTM, CharTransformer, FedAvg, FederatedTrainer, TensorData
from fedlit.engines import recurrence
from fedlit.engines.compiler import missing_operators
from fedlit.engines.dropout import KeyedDropout
from fedlit.engines.recurrence import WrittenOut
from fedlit.experiments.conformance.problem import everything, largest_gap
from tests.problems import kept_rows, run, traced_program
from tests.trainer.test_resume import assert_same_bits

if (reason := missing_operators(recurrence.SOURCE)) is not None:
    pytest.skip(f"no operators: {reason}", allow_module_level=True)

LETTERS, STEPS, WIDTH = 11, 9, 5
LAYERS: dict[str, Callable[..., nn.RNNBase]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *sizes, **form: nn.RNN(*sizes, nonlinearity="relu", **form),
}
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "deep, both ways": {"num_layers": 3, "bidirectional": True, "batch_first": True},
    "without bias": {"bias": False, "batch_first": True},
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("width", [1, 19, 64])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layer", LAYERS)
def test_layer_is_torchs_to_rounding(layer: str, form: str, width: int, dtype: torch.dtype) -> None:
    """Outputs, last states, and the gradients of weights, input and first states."""
    torch.manual_seed(0)
    own = LAYERS[layer](3, width, **FORMS[form]).to(dtype)
    x = torch.randn(13, 7, 3, dtype=dtype)
    places = own.num_layers * (2 if own.bidirectional else 1)
    first = torch.randn(2, places, 13 if own.batch_first else 7, width, dtype=dtype)
    directions = torch.randn(x.shape[0], x.shape[1], width * (places // own.num_layers), dtype=dtype)

    def loss(params: dict[str, Tensor], x: Tensor, first: Tensor) -> tuple[Tensor, Any]:
        output, last = functional_call(own, params, (x, (first[0], first[1]) if layer == "lstm" else first[0]))
        ends = sum(part.sin().sum() for part in tree_leaves(last))
        return (output * directions).mean() + 0.1 * ends, (output, last)

    slopes = grad(loss, argnums=(0, 1, 2), has_aux=True)
    inputs = ({name: value.detach() for name, value in own.named_parameters()}, x, first)
    torchs = slopes(*inputs)
    with WrittenOut():
        ours = slopes(*inputs)
    allowed = 1e-12 if dtype == torch.float64 else 2e-4
    for one, other in zip(tree_leaves(torchs), tree_leaves(ours), strict=True):
        assert float((one - other).abs().max()) <= allowed * max(1.0, float(one.abs().max()))


def test_gradient_of_a_gradient_is_refused_and_not_wrong() -> None:
    layer, x = nn.GRU(3, 4).double(), torch.randn(5, 2, 3, dtype=torch.float64)

    def slope(x: Tensor) -> Tensor:
        return grad(lambda at: layer(at)[0].square().sum())(x).square().sum()

    with WrittenOut(), pytest.raises(NotImplementedError, match="gradient of a gradient cannot be compiled"):
        grad(slope)(x)


def test_nan_stays_nan() -> None:
    x = torch.full((4, 2, 3), torch.nan, dtype=torch.float64)
    for layer in (nn.LSTM(3, 4), nn.GRU(3, 4), nn.RNN(3, 4)):
        with WrittenOut():
            assert layer.double()(x)[0].isnan().all()


@pytest.mark.parametrize("batch_first", [True, False])
def test_dropout_between_layers_is_keyed_by_row(batch_first: bool) -> None:
    """More rows of padding change no mask of a real row; the next call has other masks."""
    torch.manual_seed(0)
    layer = nn.LSTM(3, 8, 2, dropout=0.5, batch_first=batch_first)
    x = torch.randn(4, 6, 3)

    def output(rows: Tensor, calls: int = 1) -> Tensor:
        given = rows if batch_first else rows.transpose(0, 1)
        with KeyedDropout(torch.tensor(3)):
            for _ in range(calls):
                found = layer(given)[0]
        return found if batch_first else found.transpose(0, 1)

    padded = torch.cat([x, torch.randn(3, 6, 3)])
    assert float((output(padded)[:4] - output(x)).abs().max()) < 1e-6
    assert float((output(x, calls=2) - output(x)).abs().max()) > 1e-3
    assert float((layer.eval()(x if batch_first else x.transpose(0, 1))[0]).abs().max()) > 0


def texts() -> TensorData:
    client = np.repeat(np.arange(4), (7, 12, 16, 23))
    rng = np.random.default_rng(1)
    x, y = rng.integers(LETTERS, size=(len(client), STEPS)), rng.integers(LETTERS, size=len(client))
    return TensorData(x, y, client, num_classes=LETTERS, test_fraction=0.25)


class Reads(nn.Module):
    """A layer over the embedded letters."""

    def __init__(self, layer: nn.Module, width: int, embedding: int = 4) -> None:
        super().__init__()
        self.embedding, self.layer, self.head = nn.Embedding(LETTERS, embedding), layer, nn.Linear(width, LETTERS)

    def forward(self, x: Tensor) -> Tensor:
        embedded = self.embedding(x)
        attends = isinstance(self.layer, nn.MultiheadAttention)
        output = self.layer(embedded, embedded, embedded) if attends else self.layer(embedded)
        logits: Tensor = self.head((output[0] if isinstance(output, tuple) else output).mean(1))
        return logits


def encoder(dropout: float) -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, dropout, batch_first=True), 2, None, False)


NETS: dict[str, Callable[[], nn.Module]] = {
    "CharLSTM": lambda: CharLSTM(LETTERS, 3, WIDTH),
    "gru": lambda: Reads(nn.GRU(4, WIDTH, 2, batch_first=True, bidirectional=True), 2 * WIDTH),
    "rnn": lambda: Reads(nn.RNN(4, WIDTH, batch_first=True), WIDTH),
    "lstm, dropout": lambda: Reads(nn.LSTM(4, WIDTH, 3, batch_first=True, dropout=0.4), WIDTH),
    "gru, dropout": lambda: Reads(nn.GRU(4, WIDTH, 2, batch_first=True, dropout=0.4, bidirectional=True), 2 * WIDTH),
    "encoder": lambda: Reads(encoder(0.0), 4),
    "encoder, dropout": lambda: Reads(encoder(0.3), 4),
    "attention, dropout": lambda: Reads(nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=True), 4),
}


def fitted(net: str, **trainer: Any) -> FederatedTrainer:
    torch.manual_seed(3)
    client = FedAvg(NETS[net]().double(), lr=0.5, batch_size=4, local_epochs=1)
    return run(client, texts(), **({"rounds": 2} | trainer))


@pytest.mark.parametrize("net", NETS)
def test_one_lane_equals_sequential_eagerly_and_as_the_compiler_gets_it(
    net: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedlit.engines.vectorized.compile_program", traced_program)
    slow, eager = fitted(net), fitted(net, engine="vectorized", compiled=False, lanes=1)
    traced = fitted(net, engine="vectorized", compiled=True, workers=1, lanes=1)
    assert [one.summary["engine"] for one in (slow, eager, traced)] == ["sequential", "vectorized", "vectorized"]
    assert traced.summary["compiled"]
    assert largest_gap(everything(slow), everything(eager)) < 1e-10
    assert largest_gap(everything(slow), everything(traced)) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("net", NETS)
def test_compiled_program_equals_sequential(net: str) -> None:
    slow, fast = fitted(net), fitted(net, engine="vectorized", compiled=True, workers=2)
    assert fast.loop.choice is not None
    assert fast.loop.choice.loops == "lean"
    assert largest_gap(everything(slow), everything(fast)) < 1e-10


@pytest.mark.parametrize("engine", [{}, {"engine": "vectorized", "compiled": False}], ids=["sequential", "vectorized"])
@pytest.mark.parametrize("net", ["lstm, dropout", "encoder, dropout"])
def test_dropout_is_resumed_to_the_same_bits(net: str, engine: dict[str, Any], tmp_path: Path) -> None:
    whole = fitted(net, **engine)
    fitted(net, rounds=1, run=tmp_path, **engine)
    resumed = fitted(net, run=tmp_path, resume=True, **engine)
    assert_same_bits(kept_rows(whole), kept_rows(resumed))


def test_transformer_of_fedlit_agrees() -> None:
    def trained(**engine: Any) -> FederatedTrainer:
        torch.manual_seed(3)
        net = CharTransformer(LETTERS, width=8, heads=2, blocks=1, length=STEPS).double()
        return run(FedAvg(net, lr=0.1, batch_size=4, local_epochs=1), texts(), rounds=1, **engine)

    one, other = trained(), trained(engine="vectorized", compiled=False, lanes=1)
    assert largest_gap(everything(one), everything(other)) < 1e-10
