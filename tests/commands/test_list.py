"""`fedlit list`: every public part and every config with a line."""

import fedlit
from fedlit.catalogue import METRICS
from fedlit.commandline.configs import shipped_configs
from fedlit.commands.list import KINDS, LISTS, entries
from tests.conftest import Call


def test_every_list_names_its_parts_with_a_line() -> None:
    for name in LISTS:
        lines = entries(name)
        assert lines
        assert all(lines.values()), f"{name}: {[entry for entry, line in lines.items() if not line]}"


def test_lists_are_complete() -> None:
    assert set(entries("configs")) == set(shipped_configs())
    assert set(METRICS) < set(entries("metrics"))
    assert "FedBC" in entries("algorithms")
    assert "Client" not in entries("algorithms")
    assert set(entries("networks")) == {"CharLSTM", "DigitNet", "LeNet", "MLP", "ResNet18", "ResNet20", "Softmax"}
    assert set(entries("mixings")) == {"Complete", "Given", "RandomPairs", "Ring"}
    assert set(entries("distributions")) == {"Constant", "Exponential", "LogNormal", "Trace", "Uniform", "Weibull"}
    assert {"EarliestSampler", "QuotaSampler"} < set(entries("samplers"))
    assert all(hasattr(fedlit, name) for kind in KINDS for name in entries(kind))


def test_a_user_sees_what_was_asked_for(call: Call) -> None:
    answer = call("list weights metrics")
    assert answer.code == 0
    assert "ExpAlpha" in answer.out
    assert "users/acc_var" in answer.out
    assert "UniformSampler" not in answer.out


def test_an_unknown_list_is_refused_with_the_nearest_name(call: Call) -> None:
    answer = call("list algoritms")
    assert answer.code == 2
    assert "Did you mean 'algorithms'?" in answer.err
