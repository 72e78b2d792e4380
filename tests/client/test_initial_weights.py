"""Initial weights: the seed governs them whenever the net was built; what a net brings is kept where asked for."""

import pickle
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedlit import MLP, CharLSTM, DigitNet, FedAvg, FederatedTrainer, LeNet, ResNet18, ResNet20, ServerCallback, Softmax
from fedlit.client.initial_weights import InitialWeights, draw_initial_weights
from fedlit.errors import ConfigError
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


# ---- trained nets --------------------------------------------------------------------------------------------------


def trainer_of(**options: Any) -> FederatedTrainer:
    return FederatedTrainer(clients_per_round=2, engine="sequential", enable_progress_bar=False, **options)


def trained_by_a_run(**options: Any) -> Softmax:
    """Eighteen numbers, moved a little: by themselves they tell nothing."""
    net = Softmax(FEATURES, CLASSES)
    trainer_of(rounds=1, **options).fit(FedAvg(net, lr=1e-3), datamodule=tiny_data())
    return net


def loaded(net: nn.Module) -> nn.Module:
    fresh = Softmax(60, 10)
    fresh.load_state_dict(net.state_dict())
    return fresh


def trained_by_hand(steps: int = 10) -> Softmax:
    """Softmax regression after a few steps of torch's own optimiser; the largest number moves by 1 percent or so."""
    torch.manual_seed(1)
    net, x, y = Softmax(60, 10), torch.randn(200, 60), torch.randint(10, (200,))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net


COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "itself": lambda net: net,
    "a copy": deepcopy,
    "unpickled": lambda net: pickle.loads(pickle.dumps(net)),
    "in double precision": lambda net: deepcopy(net).double(),
}


@pytest.mark.parametrize("kept", ["seed", "net"])
@pytest.mark.parametrize("copy", COPIES)
def test_a_net_that_a_run_has_trained_is_refused_and_kept(copy: str, kept: InitialWeights) -> None:
    net = COPIES[copy](trained_by_a_run(initial_weights=kept))
    before = weights(net)
    with pytest.raises(ConfigError, match="trained by a run before.*Build a new net.*'net'.*resume=True"):
        trainer_of(rounds=1).fit(FedAvg(net), datamodule=tiny_data())
    assert equal(weights(net), before)


@pytest.mark.parametrize("copy", [*COPIES.values(), loaded], ids=[*COPIES, "loaded from a state dict"])
def test_a_net_that_a_few_steps_of_torch_have_trained_is_refused(copy: Callable[[nn.Module], nn.Module]) -> None:
    with pytest.raises(ConfigError, match="'linear.weight' is not what .* trained"):
        draw_initial_weights(copy(trained_by_hand()), 0)


def test_a_trained_net_whose_layers_were_drawn_again_is_a_new_one() -> None:
    net = trained_by_a_run()
    net.linear.reset_parameters()
    draw_initial_weights(net, 0)


def test_a_run_that_fails_before_its_first_round_leaves_a_net_for_another() -> None:
    class Fault(Exception):
        pass

    class Failing(ServerCallback):
        def on_cohort_start(self, *args: Any) -> None:
            raise Fault

    client = FedAvg(Softmax(FEATURES, CLASSES))
    with pytest.raises(Fault):
        trainer_of(rounds=1, callbacks=[Failing()]).fit(client, datamodule=tiny_data())
    trainer_of(rounds=1).fit(client, datamodule=tiny_data())


def test_a_run_is_resumed_with_the_net_that_it_has_trained(tmp_path: Path) -> None:
    """Its checkpoint brings the weights: nothing is lost."""
    whole, parts = trainer_of(rounds=4), Softmax(FEATURES, CLASSES)
    whole.fit(FedAvg(Softmax(FEATURES, CLASSES)), datamodule=tiny_data())
    trainer_of(rounds=2, run=tmp_path / "run").fit(FedAvg(parts), datamodule=tiny_data())
    trainer_of(rounds=4, run=tmp_path / "run", resume=True).fit(FedAvg(parts), datamodule=tiny_data())
    assert equal(weights(parts), list(whole.loop.server.model.values()))


@pytest.mark.parametrize("make", [Softmax, LeNet, CharLSTM, ResNet20, lambda: nn.TransformerEncoderLayer(16, 2, 32)])
def test_fresh_nets_of_any_seed_are_accepted(make: Callable[[], nn.Module]) -> None:
    for seed in range(20):
        torch.manual_seed(10_000 + seed)
        draw_initial_weights(make(), seed)


def test_layers_with_a_few_numbers_raise_no_false_alarm() -> None:
    for seed in range(300):
        torch.manual_seed(10_000 + seed)
        draw_initial_weights(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 17)), seed)
