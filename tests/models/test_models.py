"""Laws of the papers' networks: their size, their shapes, and that engines may copy, pickle and call them."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

import fedlit.models
from fedlit import FedAvg
from fedlit.errors import ConfigError
from fedlit.models import MLP, CharLSTM, CharTransformer, DigitNet, LeNet, ResNet18, ResNet20, Softmax
from fedlit.models.resnet import Block, Shortcut, SubsampleAndPad
from fedlit.models.transformer import CausalBlock
from tests.problems import largest_difference, run, tiny_data, weights_of

ROWS = 3


@dataclass(frozen=True)
class Case:
    """A network of the papers: how it is made, a sample's shape, its logits and its parameters."""

    make: Callable[[], nn.Module]
    sample: tuple[int, ...]
    num_classes: int
    parameters: int

    def build(self, seed: int = 0) -> nn.Module:
        torch.manual_seed(seed)
        return self.make()

    def rows(self) -> Tensor:
        """A batch: characters for the text network, whose samples have one axis and no features; else numbers."""
        generator = torch.Generator().manual_seed(1)
        if self.make in (CharLSTM, CharTransformer):
            return torch.randint(self.num_classes, (ROWS, *self.sample), generator=generator)
        return torch.randn(ROWS, *self.sample, generator=generator)


CASES = {
    "softmax synthetic": Case(Softmax, (60,), 10, 610),
    "softmax MNIST": Case(lambda: Softmax(784), (1, 28, 28), 10, 7_850),
    "MLP 784-128-10": Case(MLP, (1, 28, 28), 10, 101_770),
    "MLP 784-128-10 dropout": Case(lambda: MLP(dropout=0.5), (1, 28, 28), 10, 101_770),
    "MLP 784-100-10": Case(lambda: MLP(hidden=(100,)), (1, 28, 28), 10, 79_510),
    "MLP 60-20-10": Case(lambda: MLP(60, (20,)), (60,), 10, 1_430),
    "MLP 784-128-64-10": Case(lambda: MLP(hidden=(128, 64)), (1, 28, 28), 10, 109_386),
    "LeNet": Case(LeNet, (3, 32, 32), 10, 62_006),
    "ResNet20": Case(ResNet20, (3, 32, 32), 10, 269_722),
    "ResNet20 conv bias": Case(lambda: ResNet20(conv_bias=True), (3, 32, 32), 10, 270_410),
    "ResNet20 shortcut B": Case(lambda: ResNet20(shortcut="B"), (3, 32, 32), 10, 272_474),
    "ResNet20 GroupNorm": Case(lambda: ResNet20(norm="group"), (3, 32, 32), 10, 269_722),
    "ResNet20 GroupNorm B": Case(lambda: ResNet20(norm="group", groups=8, shortcut="B"), (3, 32, 32), 10, 272_474),
    "DigitNet": Case(DigitNet, (3, 28, 28), 10, 14_219_210),
    "CharLSTM": Case(CharLSTM, (80,), 80, 819_920),
    "CharTransformer": Case(CharTransformer, (80,), 80, 824_144),
    "ResNet18": Case(ResNet18, (3, 64, 64), 10, 11_181_642),
    "ResNet18 GroupNorm": Case(lambda: ResNet18(norm="group"), (3, 64, 64), 10, 11_181_642),
}
EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def tensors(net: nn.Module) -> dict[str, Tensor]:
    """Detached copies of the parameters and buffers."""
    return {name: value.clone() for name, value in net.state_dict().items()}


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=0)


# ---- all networks ----------------------------------------------------------------------------------------------------


def test_every_network_is_among_the_cases() -> None:
    assert {type(case.build()).__name__ for case in CASES.values()} == set(fedlit.models.__all__) - {
        "LoRA"
    }  # of any net


@EVERY
def test_parameters_are_as_many_as_in_the_papers(case: Case) -> None:
    assert size(case.build()) == case.parameters


@EVERY
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_logits_have_a_row_per_sample_and_a_column_per_class(case: Case, training: bool) -> None:
    logits = case.build().train(training)(case.rows())
    assert (logits.shape, logits.dtype) == ((ROWS, case.num_classes), torch.float32)
    assert logits.isfinite().all()


@EVERY
def test_gradient_reaches_every_parameter(case: Case) -> None:
    """In evaluation, because BatchNorm in training subtracts the bias of the layer before it."""
    net = case.build().eval()
    loss = nn.functional.cross_entropy(net(case.rows()), torch.arange(ROWS))
    loss.backward()  # type: ignore[no-untyped-call]  # torch has no hints here
    untouched = [name for name, value in net.named_parameters() if value.grad is None or not value.grad.any()]
    assert untouched == []


@EVERY
def test_rows_do_not_see_each_other_in_evaluation(case: Case) -> None:
    net, x = case.build().eval(), case.rows()
    torch.testing.assert_close(net(x)[:1], net(x[:1]), rtol=1e-4, atol=1e-5)


@EVERY
def test_deep_copy_answers_alike_and_shares_nothing(case: Case) -> None:
    net = case.build().eval()
    before, logits = tensors(net), net(case.rows())
    twin = copy.deepcopy(net)
    torch.testing.assert_close(twin(case.rows()), logits, rtol=0, atol=0)
    with torch.no_grad():
        for value in twin.parameters():
            value.zero_()
    assert_same(tensors(net), before)


@EVERY
def test_pickled_network_comes_back_the_same(case: Case) -> None:
    net = case.build().eval()
    back = pickle.loads(pickle.dumps(net))
    assert_same(tensors(back), tensors(net))
    torch.testing.assert_close(back(case.rows()), net(case.rows()), rtol=0, atol=0)


@EVERY
def test_functional_call_uses_the_given_tensors_and_leaves_its_own_alone(case: Case) -> None:
    net, other = case.build(seed=0).eval(), case.build(seed=1).eval()
    before = tensors(net)
    answer = functional_call(net, tensors(other), (case.rows(),))
    torch.testing.assert_close(answer, other(case.rows()), rtol=0, atol=0)
    assert_same(tensors(net), before)


@EVERY
def test_functional_gradient_equals_the_backward_pass(case: Case) -> None:
    net, x = case.build().eval(), case.rows()
    net(x).square().mean().backward()
    params = {name: value.detach() for name, value in net.named_parameters()}
    gradient = torch.func.grad(lambda values: functional_call(net, values, (x,)).square().mean())(params)
    torch.testing.assert_close(gradient, {name: value.grad for name, value in net.named_parameters()})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MLP(hidden=()), "MLP.hidden is empty"),
        (lambda: MLP(dropout=1.0), "MLP.dropout is 1.0"),
        (lambda: MLP(dropout=-0.1), "MLP.dropout is -0.1"),
        (lambda: ResNet20(channels=0), "ResNet20.channels is 0"),
        (lambda: ResNet20(num_classes=0), "ResNet20.num_classes is 0"),
        (lambda: ResNet20(shortcut="C"), "ResNet20.shortcut is 'C'"),  # type: ignore[arg-type]  # the point
        (lambda: ResNet18(num_classes=0), "ResNet18.num_classes is 0"),
        (lambda: ResNet20(norm="layer"), "ResNet20.norm is 'layer'"),  # type: ignore[arg-type]  # the point
        (lambda: ResNet20(norm="group", groups=3), "ResNet20.groups is 3; give a number that divides 16"),
        (lambda: ResNet18(norm="group", groups=0), "ResNet18.groups is 0"),
        (lambda: DigitNet(channels=0), "DigitNet.channels is 0"),
        (lambda: DigitNet(num_classes=0), "DigitNet.num_classes is 0"),
        (lambda: CharLSTM(num_classes=0), "CharLSTM.num_classes is 0"),
        (lambda: CharLSTM(embedding=0), "CharLSTM.embedding is 0"),
        (lambda: CharLSTM(hidden=0), "CharLSTM.hidden is 0"),
        (lambda: CharTransformer(blocks=0), "CharTransformer.blocks is 0"),
        (lambda: CharTransformer(width=30), "CharTransformer.width is 30, but 4 heads divide it"),
    ],
)
def test_refusal_names_the_argument_and_its_value(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "sample"),
    [
        (lambda: ResNet20(channels=1, num_classes=7), (1, 28, 28)),
        (lambda: DigitNet(channels=1, num_classes=7), (1, 28, 28)),
        (lambda: ResNet18(num_classes=7), (3, 28, 28)),
    ],
    ids=["ResNet20", "DigitNet", "ResNet18"],
)
def test_other_channels_and_classes_fit(make: Callable[[], nn.Module], sample: tuple[int, ...]) -> None:
    assert make()(torch.randn(ROWS, *sample)).shape == (ROWS, 7)


# ---- dropout of the MLP ----------------------------------------------------------------------------------------------


def test_dropout_stands_between_each_hidden_layer_and_its_relu() -> None:
    layers = [type(layer) for layer in MLP(hidden=(128, 64), dropout=0.5).layers]
    assert layers == [nn.Linear, nn.Dropout, nn.ReLU, nn.Linear, nn.Dropout, nn.ReLU, nn.Linear]


def test_mlp_without_dropout_has_no_dropout_layer() -> None:
    assert [type(layer) for layer in MLP(dropout=0.0).layers] == [nn.Linear, nn.ReLU, nn.Linear]


def test_dropout_changes_training_and_not_evaluation() -> None:
    case = CASES["MLP 784-128-10"]
    plain, dropping, x = case.build(), CASES["MLP 784-128-10 dropout"].build(), case.rows()
    assert not torch.equal(dropping(x), plain(x))
    torch.testing.assert_close(dropping.eval()(x), plain(x), rtol=0, atol=0)


# ---- residual networks -----------------------------------------------------------------------------------------------


def test_shortcut_a_is_every_second_pixel_and_channels_of_zeros() -> None:
    x = torch.randn(2, 16, 8, 6)
    expected = torch.zeros(2, 32, 4, 3)
    for row in range(4):
        for column in range(3):
            expected[:, :16, row, column] = x[:, :, 2 * row, 2 * column]
    shortcut = SubsampleAndPad(16)
    torch.testing.assert_close(shortcut(x), expected, rtol=0, atol=0)
    assert tensors(shortcut) == {}


@pytest.mark.parametrize(("width_in", "width_out", "expected"), [(16, 16, (16, 8)), (16, 32, (32, 4))])
def test_block_without_residual_is_the_relu_of_its_shortcut(
    width_in: int, width_out: int, expected: tuple[int, int]
) -> None:
    block = Block(width_in, width_out, "A", conv_bias=False, norm=nn.BatchNorm2d)
    nn.init.zeros_(block.norm2.weight)
    x = torch.randn(2, width_in, 8, 8)
    answer = block(x)
    assert answer.shape == (2, expected[0], expected[1], expected[1])
    torch.testing.assert_close(answer, block.shortcut(x).relu(), rtol=0, atol=0)


@pytest.mark.parametrize(("shortcut", "kind"), [("A", SubsampleAndPad), ("B", nn.Sequential)])
def test_only_the_first_blocks_of_stages_two_and_three_have_a_shortcut_of_their_own(
    shortcut: Shortcut, kind: type
) -> None:
    blocks = ResNet20(shortcut=shortcut).blocks
    shortcuts = [type(block.shortcut) for block in blocks if isinstance(block, Block)]
    same = nn.Identity
    assert shortcuts == [same, same, same, kind, same, same, kind, same, same]


def test_resnet20_sees_a_picture_of_32_at_32_16_and_8() -> None:
    x = torch.randn(1, 16, 32, 32)
    shapes = []
    for block in ResNet20().blocks:
        x = block(x)
        shapes.append(tuple(x.shape[1:]))
    assert shapes == [*[(16, 32, 32)] * 3, *[(32, 16, 16)] * 3, *[(64, 8, 8)] * 3]


@pytest.mark.parametrize("conv_bias", [True, False])
def test_conv_bias_holds_for_every_convolution(conv_bias: bool) -> None:
    convolutions = [
        module for module in ResNet20(shortcut="B", conv_bias=conv_bias).modules() if isinstance(module, nn.Conv2d)
    ]
    assert [module.bias is not None for module in convolutions] == [conv_bias] * 21


# ---- digits ----------------------------------------------------------------------------------------------------------


def test_digit_net_has_5632_parameters_in_batch_norm() -> None:
    assert sum(size(module) for module in DigitNet().modules() if isinstance(module, _BatchNorm)) == 5_632


def test_digit_net_normalises_what_each_layer_but_the_last_gives() -> None:
    net = DigitNet()
    given: list[Tensor] = []
    for norm in (net.norm1, net.norm2, net.norm3, net.norm4, net.norm5):
        norm.register_forward_hook(lambda module, inputs, output: given.append(output))
    net(CASES["DigitNet"].rows())
    assert [tuple(value.shape[1:]) for value in given] == [(64, 28, 28), (64, 14, 14), (128, 7, 7), (2048,), (512,)]


# ---- text ------------------------------------------------------------------------------------------------------------


def lstm_layer(inputs: Tensor, net: nn.LSTM, layer: int) -> Tensor:
    """(steps, hidden) outputs for one text (steps, width), by the equations of PyTorch's documentation."""
    weight_in, weight_hidden, bias_in, bias_hidden = (
        net.get_parameter(f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    hidden = cell = torch.zeros(net.hidden_size)
    outputs = []
    for step in inputs:
        gates = weight_in @ step + bias_in + weight_hidden @ hidden + bias_hidden
        enter, forget, candidate, leave = gates.chunk(4)
        cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
        hidden = leave.sigmoid() * cell.tanh()
        outputs.append(hidden)
    return torch.stack(outputs)


def test_char_lstm_reads_the_last_step_of_two_layers() -> None:
    case = CASES["CharLSTM"]
    net, texts = case.build(), case.rows()
    assert isinstance(net, CharLSTM)
    outputs = lstm_layer(lstm_layer(net.embedding.weight[texts[0]], net.lstm, 0), net.lstm, 1)
    torch.testing.assert_close(net(texts)[0], net.fc(outputs[-1]), rtol=1e-4, atol=1e-5)


def test_char_lstm_takes_texts_of_any_length() -> None:
    assert CharLSTM(num_classes=5, embedding=2, hidden=4)(torch.zeros(ROWS, 7, dtype=torch.int64)).shape == (ROWS, 5)


def test_char_transformer_sees_no_later_character() -> None:
    case = CASES["CharTransformer"]
    texts = case.rows()
    net = CharTransformer(every_position=True)
    net.load_state_dict(case.build().state_dict())
    after = texts.clone()
    after[:, 50:] = 0
    torch.testing.assert_close(net(texts)[:, :50], net(after)[:, :50], rtol=0, atol=0)
    torch.testing.assert_close(net(texts)[:, -1], case.build()(texts))


def test_attention_of_a_causal_block_is_that_of_the_paper() -> None:
    torch.manual_seed(0)
    block, x = CausalBlock(6, 2), torch.randn(2, 5, 6)
    heads = [slice(0, 3), slice(3, 6)]
    query, key, value = block.query(x), block.key(x), block.value(x)
    later = torch.ones(5, 5).triu(1).bool()
    scores = [(query[..., part] @ key[..., part].mT / 3**0.5).masked_fill(later, -torch.inf) for part in heads]
    mixed = [one.softmax(-1) @ value[..., part] for one, part in zip(scores, heads, strict=True)]
    torch.testing.assert_close(block.attend(x), block.out(torch.cat(mixed, -1)))


@pytest.mark.parametrize("make", [ResNet20, ResNet18])
def test_group_norm_leaves_no_buffers_and_no_row_to_another(make: Callable[..., nn.Module]) -> None:
    torch.manual_seed(0)
    net, x = make(norm="group"), torch.randn(3, 3, 32, 32)
    assert not list(net.buffers())
    net.train()
    torch.testing.assert_close(net(x)[1:2], net(x[1:2]), rtol=1e-4, atol=1e-5)


def test_resnet20_with_group_norm_trains_alike_in_both_engines() -> None:
    def trained(engine: str) -> dict[str, Tensor]:
        torch.manual_seed(0)
        client = FedAvg(ResNet20(num_classes=3, norm="group").double(), lr=0.1, batch_size=4, local_steps=1)
        options = {"compiled": False, "lanes": 2} if engine == "vectorized" else {}
        return weights_of(run(client, tiny_data(shape=(3, 8, 8)), engine=engine, rounds=1, **options))

    assert largest_difference(trained("sequential"), trained("vectorized")) < 1e-10
