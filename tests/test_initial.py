"""Initial weights: the seed governs them whenever the net was built; what a net brings is kept where asked for."""

import pytest
import torch
from torch import Tensor, nn

from fedlit import MLP, CharLSTM, DigitNet, FedAvg, FederatedTrainer, LeNet, ResNet18, ResNet20, Softmax
from fedlit.errors import ConfigError
from fedlit.initial import draw_initial_weights
from tests.problems import CLASSES, FEATURES, tiny_data

NETS = (Softmax, MLP, LeNet, ResNet20, DigitNet, CharLSTM)


def weights(net: nn.Module) -> list[Tensor]:
    return [value.clone() for value in net.state_dict().values()]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("order", ["net first", "trainer first"])
@pytest.mark.parametrize("before", [1, 2])
def test_same_script_same_numbers_whatever_the_order(order: str, before: int) -> None:
    """`before` stands for the random state of a process that nobody seeded."""
    torch.manual_seed(before)
    net = Softmax(FEATURES, CLASSES)
    trainer = FederatedTrainer(rounds=1, clients_per_round=2, seed=0, enable_progress_bar=False)
    if order == "trainer first":
        net = Softmax(FEATURES, CLASSES)
    trainer.fit(FedAvg(net, lr=0.1), datamodule=tiny_data())
    torch.manual_seed(0)
    expected = Softmax(FEATURES, CLASSES)
    assert equal(list(trainer.loop.server.initial.values()), weights(expected))


def test_another_seed_gives_other_weights() -> None:
    first, second = Softmax(), Softmax()
    draw_initial_weights(first, 0)
    draw_initial_weights(second, 1)
    assert not equal(weights(first), weights(second))


@pytest.mark.parametrize("make", NETS)
def test_drawn_again_a_net_is_what_its_constructor_gives_under_that_seed(make: type[nn.Module]) -> None:
    torch.manual_seed(5)
    built = make()
    torch.manual_seed(9)
    drawn = make()
    draw_initial_weights(drawn, 5)
    assert equal(weights(drawn), weights(built))


def test_torchvisions_net_keeps_its_own_initialisation() -> None:
    first, second = ResNet18(), ResNet18()
    draw_initial_weights(first, 3)
    draw_initial_weights(second, 3)
    assert equal(weights(first), weights(second))
    assert float(first.resnet.conv1.weight.detach().std()) == pytest.approx((2 / (64 * 49)) ** 0.5, rel=0.05)


def test_drawing_leaves_the_callers_stream_alone() -> None:
    net = Softmax()
    torch.manual_seed(4)
    expected = torch.rand(1)
    torch.manual_seed(4)
    draw_initial_weights(net, 0)
    assert torch.equal(torch.rand(1), expected)


class OwnInitialisation(nn.Linear):
    """What many nets do in their constructor."""

    def __init__(self) -> None:
        super().__init__(60, 10)
        nn.init.kaiming_normal_(self.weight)


class BareParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(FEATURES, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.table


def trained() -> nn.Module:
    net = Softmax(60, 10)
    with torch.no_grad():
        net.linear.weight *= 5
    return net


@pytest.mark.parametrize(
    ("make", "words"),
    [(OwnInitialisation, "initialisation of its own"), (trained, "trained"), (BareParameter, "reset_parameters")],
)
def test_weights_that_the_layers_would_not_draw_are_refused_and_kept(make: type[nn.Module], words: str) -> None:
    net = make()
    before = weights(net)
    with pytest.raises(ConfigError, match=words) as refused:
        draw_initial_weights(net, 0)
    assert "initial_weights" in str(refused.value)
    assert equal(weights(net), before)


def test_what_a_net_brings_is_kept_where_asked_for() -> None:
    net = BareParameter()
    before = weights(net)
    trainer = FederatedTrainer(rounds=1, clients_per_round=2, initial_weights="net", enable_progress_bar=False)
    trainer.fit(FedAvg(net), datamodule=tiny_data())
    assert equal(list(trainer.loop.server.initial.values()), before)


def test_layers_with_a_few_numbers_raise_no_false_alarm() -> None:
    for seed in range(300):
        torch.manual_seed(10_000 + seed)
        draw_initial_weights(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 17)), seed)
