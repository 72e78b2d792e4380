"""`fedlit list`: every public part and every config with a line."""

import inspect
import subprocess
import sys
import textwrap
from importlib import import_module
from pathlib import Path

import pytest
from torch import nn

import fedlit
from fedlit.cli.list import KINDS, LISTS, entries
from fedlit.config.files import shipped_configs
from fedlit.metrics.catalogue import METRICS
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
    assert set(entries("networks")) == {
        "CharLSTM",
        "CharTransformer",
        "DigitNet",
        "LeNet",
        "LoRA",
        "MLP",
        "ResNet18",
        "ResNet20",
        "Softmax",
    }
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


def test_what_the_sources_say_is_what_python_says() -> None:
    kinds = {"networks": nn.Module} | {
        name: getattr(import_module(place.module), place.name) for name, place in KINDS.items() if name != "networks"
    }
    public = [getattr(place, name) for place in (fedlit, fedlit.clock) for name in sorted(place.__all__)]
    for name, kind in kinds.items():
        own = [one for one in public if inspect.isclass(one) and issubclass(one, kind) and one is not kind]
        lines = {
            one.__name__: (inspect.getdoc(one) or "").partition("\n")[0]
            for one in own
            if name != "networks" or not issubclass(one, fedlit.Client)
        }
        assert entries(name) == lines


@pytest.mark.parametrize("words", ["--help", "--version", "list", "list metrics", "", "lsit"])
def test_words_are_printed_without_importing_torch(workplace: Path, words: str) -> None:
    code = f"import sys; sys.argv[1:] = {words.split()!r}; from fedlit_start import main\n" + textwrap.dedent(
        """
        try:
            main()
        finally:
            heavy = {"torch", "pytorch_lightning", "numpy"} & set(sys.modules)
            print("heavy:", *heavy)
        """
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert told.returncode == (2 if words == "lsit" else 0), told.stderr
    assert told.stdout.endswith("heavy:\n")
