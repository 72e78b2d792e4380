"""Only its own file knows what an algorithm keeps: no state of a shipped algorithm is named anywhere else in fedlit."""

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedlit

ROOT = Path(fedlit.__file__).parent
ALGORITHMS = sorted((ROOT / "algorithms").glob("*.py"))
FILES = sorted(
    path for kind in ("py", "js", "html") for path in ROOT.rglob(f"*.{kind}") if path.parent != ROOT / "algorithms"
)
MODELS = {"RECEIVED", "INITIAL", "ZEROS"}
SPECS = ("state_spec", "sent_spec", "report_spec")
KINDS = {"local", "personal"}
"""Kinds of models that every algorithm has: x_i, and the one that is measured as personal/*."""
ALLOWED = {
    ("trainer/wandb/modes.py", "offline"): "a mode of W&B",
    ("trainer/wandb/session.py", "offline"): "a mode of W&B",
    ("trainer/wandb/logger.py", "offline"): "a mode of W&B, in a message",
    ("config/fit_cli.py", "offline"): "a mode of W&B",
    ("experiments/conformance/entries.py", "prox"): "an option of FedBCD and pFedMe",
    ("report/paper_vocabulary.py", "prox"): "an option of pFedMe",
}


def declared() -> Iterator[tuple[str, bool]]:
    """(name, whether it is a number) of every entry of a spec, whichever options it takes to have it."""
    for path in ALGORITHMS:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name in SPECS:
                for spec in (inner for inner in ast.walk(node) if isinstance(inner, ast.Dict)):
                    for key, value in zip(spec.keys, spec.values, strict=True):
                        assert isinstance(key, ast.Constant), f"{path.name} has a state without a name"
                        first = value.args[0] if isinstance(value, ast.Call) else value  # at_server(first)
                        yield key.value, not (isinstance(first, ast.Name) and first.id in MODELS)


STATES = dict(declared())
NUMBERS = {name for name, is_number in STATES.items() if is_number}
CLIENTS = [
    one
    for one in (getattr(fedlit, name) for name in fedlit.__all__)
    if inspect.isclass(one) and issubclass(one, fedlit.Client) and one is not fedlit.Client
]
OPTIONS = {name for one in CLIENTS for name in inspect.signature(one).parameters} - STATES.keys()
"""`dual_lr` and the like: what a user gives to an algorithm."""


def strings_and_names(path: Path, source: str) -> Iterator[str]:
    """What a program could find a state by: the texts and names of its code, without comments and docstrings."""
    if path.suffix != ".py":
        code = re.sub(r"/\*.*?\*/|//[^\n]*|<!--.*?-->", "", source, flags=re.DOTALL)
        yield from re.findall(r"\"[^\"\n]*\"|'[^'\n]*'|`[^`]*`|[A-Za-z_$][\w$]*", code)
        return
    tree = ast.parse(source)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    yield from (
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
    )
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    yield from (f"={token.string}" for token in tokens if token.type == tokenize.NAME)


def named(path: Path, source: str) -> set[str]:
    """The states that a file names."""
    found = set()
    for text in strings_and_names(path, source):
        rest = " ".join(word for word in re.findall(r"\w+|\W+", text) if word not in OPTIONS)
        for name in STATES.keys() - KINDS:
            # A number's name anywhere, `weight_by_<name>` too; a model's, which is a plain word, as a key or a prefix.
            anywhere = re.search(rf"(?<![A-Za-z]){name}(?![A-Za-z])", rest) if name in NUMBERS else None
            as_key = re.search(rf"(^|[\"'`.]){name}($|[\"'`./])", text) if not text.startswith("=") else None
            if as_key or anywhere:
                found.add(name)
    return found


def test_the_names_are_those_of_the_algorithms() -> None:
    assert {"dual", "tolerance", "dual_velocity", "offline", "control", "personal", "local", "gradient"} < set(STATES)
    assert {"dual", "tolerance", "offline"} < NUMBERS
    assert "control" not in NUMBERS


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_file_names_a_state(path: Path) -> None:
    file = path.relative_to(ROOT).as_posix()
    assert {name for name in named(path, path.read_text()) if (file, name) not in ALLOWED} == set()


def test_every_exception_is_needed() -> None:
    for file, name in ALLOWED:
        assert name in named(ROOT / file, (ROOT / file).read_text()), f"{file} does not name {name}: remove it"


@pytest.mark.parametrize(
    ("kind", "source", "name"),
    [
        ("py", 'state["dual"]', "dual"),
        ("py", "f'dual/{name}'", "dual"),
        ("py", "needs = ('clients.dual',)", "dual"),
        ("py", "def weight_by_tolerance(): pass", "tolerance"),
        ("py", "cohort.dual_velocity", "dual_velocity"),
        ("py", "rows['control.weight']", "control"),
        ("py", 'title = "Coefficient against dual"', "dual"),
        ("js", "row.dual", "dual"),
        ("js", "text(`by ${row.dual}`)", "dual"),
        ("js", "const LONG = { tolerance: 1 };", "tolerance"),
        ("js", 'const BARS = ["control"];', "control"),
        ("html", '<th data-column="dual">', "dual"),
    ],
)
def test_a_name_would_be_found(kind: str, source: str, name: str) -> None:
    assert name in named(Path(f"made.{kind}"), source)


@pytest.mark.parametrize("source", ['"""Dual ascent."""', "# the dual", "FedBC(net, dual_lr=1.0)", "'individual'"])
def test_prose_and_options_are_not_names(source: str) -> None:
    assert named(Path("made.py"), source) == set()
