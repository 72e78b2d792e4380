"""LoRA: an adapted layer is the layer with W + scale B A as weights, and the rest of the net stays as it was."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from fedlit import MLP, CharLSTM, CharTransformer, Client, Ditto, FedAvg, FedBC, FederatedTrainer, LeNet, PFedMe
from fedlit.client.initial_weights import draw_initial_weights
from fedlit.client.net_parts import frozen, trained_params
from fedlit.errors import ConfigError
from fedlit.models import LoRA
from fedlit.models.lora import Adapted, AdaptedAttention
from tests.conftest import Call
from tests.problems import CLASSES, FEATURES, kept_rows, largest_difference, run, tiny_data, traced_program, weights_of

LOCAL: dict[str, Any] = {"lr": 0.1, "batch_size": 4, "local_epochs": 1}


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), 2)


def texts(rows: int) -> Tensor:
    return torch.randint(0, 20, (rows, 8), generator=torch.Generator().manual_seed(2))


NETS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "dense": (lambda: MLP(FEATURES, (6,), CLASSES), torch.randn(4, FEATURES)),
    "convolutions": (LeNet, torch.randn(2, 3, 32, 32)),
    "strided": (lambda: nn.Conv2d(2, 4, (3, 2), stride=2, padding=1, dilation=2), torch.randn(2, 2, 9, 9)),
    "text": (partial(CharLSTM, embedding=4, hidden=6), texts(3)),
    "transformer": (partial(CharTransformer, width=16, heads=2, blocks=2, length=8), texts(3)),
    "torch's transformer": (encoder, torch.randn(3, 5, 16)),
}
EVERY = pytest.mark.parametrize("name", NETS)


def adapted(name: str, seed: int = 4, **options: Any) -> tuple[nn.Module, LoRA, Tensor]:
    """A plain net, the same with adapters that change it, and its inputs, in float64."""
    make, x = NETS[name]
    torch.manual_seed(3)
    plain = make().double().eval()
    torch.manual_seed(3)
    lora = LoRA(make().double(), 2, **options).eval()
    torch.manual_seed(seed)
    for layer in adapted_layers(lora):
        nn.init.normal_(layer.lora_B)
    return plain, lora, x.double() if x.is_floating_point() else x


def adapted_layers(net: nn.Module) -> list[Adapted]:
    return [layer for layer in net.modules() if isinstance(layer, Adapted)]


@EVERY
def test_an_adapted_net_has_the_sum_as_its_weights(name: str) -> None:
    """Also in evaluation, where torch's transformer takes a way of its own past its layers."""
    plain, lora, x = adapted(name, alpha=3.0)
    with torch.no_grad():
        for whole, layer in zip(plain.modules(), lora.net.modules(), strict=True):
            if isinstance(layer, Adapted):
                weight = "in_proj_weight" if isinstance(layer, AdaptedAttention) else "weight"
                is_table = isinstance(layer, nn.Embedding)
                low = layer.lora_B.flatten(1) @ layer.lora_A.flatten(1)
                getattr(whole, weight).add_(1.5 * (low.t() if is_table else low).reshape(getattr(whole, weight).shape))
    with torch.inference_mode():
        assert torch.allclose(lora(x), plain(x), atol=1e-10)
    assert torch.allclose(lora.train()(x), plain.train()(x), atol=1e-10)


@EVERY
def test_it_begins_as_the_net_trains_its_adapters_alone_and_keeps_the_names(name: str) -> None:
    make, x = NETS[name]
    torch.manual_seed(3)
    net = make().eval()
    before, names = net(x), list(net.state_dict())
    lora = LoRA(net, 2).eval()
    assert torch.equal(lora(x), before)
    assert all(key.endswith(("lora_A", "lora_B")) for key in trained_params(lora))
    assert [key.removeprefix("net.") for key in frozen(lora)] == names
    lora(x).sum().backward()
    assert all(layer.lora_B.grad is not None for layer in adapted_layers(lora))


def test_the_seed_draws_adapters_as_the_constructor_does_and_leaves_the_net() -> None:
    def made(seed: int) -> LoRA:
        torch.manual_seed(seed)
        return LoRA(MLP(FEATURES, (6,), CLASSES), 2)

    one, other = made(5), made(6)
    base = other.net.layers[0].weight.clone()
    assert draw_initial_weights(other, 5) == list(trained_params(other))
    assert largest_difference(trained_params(other), trained_params(one)) == 0
    assert torch.equal(other.net.layers[0].weight, base)


def test_targets_are_names_or_patterns() -> None:
    def targeted(targets: Any) -> set[str]:
        lora = LoRA(CharTransformer(width=16, heads=2, blocks=2, length=8), 2, targets)
        return {name.removeprefix("net.") for name, layer in lora.named_modules() if isinstance(layer, Adapted)}

    assert targeted(["*.query", "*.value"]) == {f"blocks.{n}.{name}" for n in (0, 1) for name in ("query", "value")}
    assert targeted("blocks.1") == {f"blocks.1.{name}" for name in ("query", "key", "value", "out", "up", "down")}
    assert targeted("fc") == {"fc"}


@pytest.mark.parametrize(
    ("net", "targets", "message"),
    [
        (MLP(5, (6,), 3), "layer.0", r"has 'layer\.0', but MLP has no such module\. Did you mean 'layers\.0'"),
        (MLP(5, (6,), 3), ["layers.0", "layers.1"], r"has 'layers\.1', which is a ReLU: no layer in it"),
        (nn.Conv2d(4, 4, 1, groups=2), "*", r"\(without groups\)"),
        (encoder(), "*.out_proj", r"which is a NonDynamicallyQuantizableLinear"),
    ],
)
def test_a_layer_that_does_not_exist_or_cannot_have_one_is_refused(net: nn.Module, targets: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoRA(net, 2, targets)
    with pytest.raises(ConfigError, match=r"LoRA\.rank is 0"):
        LoRA(MLP(5, (6,), 3), 0)


# training


def lora(seed: int = 3) -> LoRA:
    torch.manual_seed(seed)
    return LoRA(MLP(FEATURES, (6,), CLASSES), 2).double()


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_engines_agree_on_adapters(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedlit.engines.vectorized.compile_program", traced_program)
    slow = run(FedBC(lora(), dual_lr=0.5, **LOCAL), rounds=2)
    fast = run(FedBC(lora(), dual_lr=0.5, **LOCAL), rounds=2, engine="vectorized", compiled=engine == "compiled")
    assert largest_difference(kept_rows(slow), kept_rows(fast)) < 1e-10
    assert largest_difference(weights_of(slow), weights_of(fast)) < 1e-10


@pytest.mark.parametrize(
    ("make", "differ"),
    [
        (partial(FedBC, dual_lr=0.5), ["net.layers.0.lora_A", "net.layers.2.lora_B"]),
        (partial(PFedMe, prox=4.0, personal_lr=0.1), ["net.layers.0.lora_A", "net.layers.2.lora_B"]),
        (Ditto, ["net.layers.0.lora_A", "net.layers.2.lora_B"]),
        (partial(FedAvg, keep_local="net.layers.0"), ["net.layers.0.lora_A", "net.layers.0.lora_B"]),
        (partial(FedAvg, train=["*lora*", "net.layers.2.bias"], keep_local="net.layers.2.bias"), ["net.layers.2.bias"]),
    ],
    ids=["FedBC", "pFedMe", "Ditto", "an adapter that is kept", "a head on a shared adapter"],
)
def test_users_have_adapters_of_their_own(make: Callable[..., Client], differ: list[str]) -> None:
    trainer = run(make(lora(), **LOCAL), rounds=2)
    one, other = (dict(trainer.loop.round_evaluator.models.personal(user)) for user in trainer.loop.states.touched[:2])
    assert all("lora" in name or name in differ for name in one)
    unlike = [name for name in one if not torch.equal(one[name], other[name])]
    assert set(differ) <= set(unlike)
    if trainer.loop.client.local_tensors:
        assert unlike == differ


CONFIG = {
    "model": {
        "class_path": "FedAvg",
        "init_args": {
            "net": {
                "class_path": "fedlit.models.LoRA",
                "init_args": {
                    "net": {"class_path": "fedlit.Softmax", "init_args": {"num_features": 60}},
                    "rank": 2,
                    "targets": ["linear"],
                },
            }
        },
    },
    "data": {"class_path": "Synthetic", "init_args": {"num_clients": 6}},
    "trainer": {"rounds": 1, "clients_per_round": 2, "engine": "sequential", "enable_progress_bar": False},
}


def test_adapters_come_from_a_config_with_weights_of_the_net_alone(
    workplace: Path, call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(8)
    base = {"linear.weight": torch.randn(10, 60), "linear.bias": torch.zeros(10)}
    torch.save(base, "base.pt")
    Path("lora.yaml").write_text(yaml.safe_dump(CONFIG))
    answer = call("fit --config lora.yaml --model.init_from base.pt --run run --wandb disabled")
    assert answer.code == 0, answer.err
    assert call("export run").code == 0
    z = torch.load("run/export/global.pt", weights_only=True)
    assert torch.equal(z["net.linear.weight"], base["linear.weight"])
    assert z["net.linear.lora_B"].any()
    assert call("evaluate run").code == 0


def test_the_trainer_says_what_is_drawn(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        FederatedTrainer(rounds=1, clients_per_round=2, engine="sequential", enable_progress_bar=False).fit(
            FedAvg(lora().float(), **LOCAL), datamodule=tiny_data()
        )
    assert "drawn from seed 0 (net.layers.0.lora_A, net.layers.0.lora_B, net.layers.2.lora_A" in caplog.text
