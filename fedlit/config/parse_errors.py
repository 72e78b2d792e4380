"""What the command line's parser says, as one paragraph that names the key, what is wrong and how to fix it."""

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types
from jsonargparse import ArgumentParser

from fedlit import models
from fedlit.client.base import Client
from fedlit.clock import Clock
from fedlit.data.base import FederatedDataModule
from fedlit.data.corruption import Corruption
from fedlit.data.partition.base import Partition
from fedlit.errors import ConfigError, nearest
from fedlit.results.config_file import flatten
from fedlit.results.strict_yaml import TooLargeError, TwiceError, check_size, load_yaml
from fedlit.server.buffer import Buffer
from fedlit.server.cloud import Cloud
from fedlit.server.optimizers import ServerOptimizer
from fedlit.server.sampling import Sampler
from fedlit.server.weights import Weighting
from fedlit.trainer.configuration_checks import REFUSED_TRAINER_ARGUMENTS

_BASES: dict[str, type] = {
    "model": Client,
    "data": FederatedDataModule,
    "data.partition": Partition,
    "data.corruption": Corruption,
    "trainer.weights": Weighting,
    "trainer.sampler": Sampler,
    "trainer.server_optimizer": ServerOptimizer,
    "trainer.cloud": Cloud,
    "trainer.buffer": Buffer,
    "trainer.clock": Clock,
}
_CLOSE = 0.6
"""How alike a name must be to one in the same place, from 0 to 1."""
_LONGEST = 80
"""Characters of a value in a message."""


def explain(message: str, parser: ArgumentParser, files: Mapping[str, object]) -> str:
    """The parser's message in plain words; `files` are the configs that were given, path -> content."""
    key = ".".join(re.findall(r'Parser key "([\w.]+)"', message))
    if found := re.search(r"unrecognized arguments: --([\w.-]+)", message):
        return unknown_key(found[1].replace("-", "_"), parser, files)
    if found := re.search(r"Group '(\w+)' does not accept option '([\w.]+)'", message):
        return unknown_key(f"{found[1]}.{found[2]}", parser, files)
    if found := re.search(r"Option '([\w.]+)' is not accepted", message):
        return unknown_key(f"{key}.{found[1]}" if key else found[1], parser, files)
    if found := re.search(r"--([\w.]+)\.help: Expected a dot import path string: (\S+)", message):
        return unknown_class(f"{key}.{found[1]}" if key else found[1], found[2], files)
    if found := re.search(r"dot import path string: (\S+)|class_path '(\S+)':\s+(?:module '|No module named)", message):
        return unknown_class(key, found[1] or found[2], files)
    if found := re.search(r"Expected an? (.+?)\. Got value: (.*)", message):
        return f"{place(files, key=key, value=found[2])}{key} is {found[2]!r}, but it must be {plain_type(found[1])}."
    if found := re.search(r"Errors:\n((?: *- Expected an? .*\n)+) *Given value type: .*\n *Given value: (.*)", message):
        hints = [plain_type(hint) for hint in re.findall(r"- Expected an? (.*)", found[1]) if "NoneType" not in hint]
        return f"{place(files, key=key, value=found[2])}{key} is {found[2]!r}, but it must be {' or '.join(hints)}."
    if found := re.search(r"arguments are required: (.*)", message):
        lacking = f"{key} lacks {found[1]}." if key else "Nothing says what to train."
        return f"{lacking} Name a config, such as --config synthetic_fedbc.yaml, or give each value. {see_help(parser)}"
    return misplaced(message, key, see_help(parser))


def see_help(parser: ArgumentParser) -> str:
    """Where the options are listed."""
    return f"{parser.prog} --help lists every argument, {parser.prog} --model.help CLASS those of a class."


def misplaced(message: str, key: str, hint: str) -> str:
    """A word that is missing, or stands where it does not belong; else the parser's own message in one line."""
    if found := re.search(r"Multiple subclasses with name (\w+)\. .*: (.*)\.", message):
        return f"{key} names the class '{found[1]}', and there are several. Give one of {found[2]}."
    if found := re.search(
        r"not correspond to a subclass of (\w+)(?:.|\n)*?Given value: (?:{'class_path': ')?([^\s']+)", message
    ):
        option = rf"'{key.rpartition('.')[2]}': {{'class_path': '([^']+)'"  # one within a class's options
        name = inner[1] if (inner := re.search(option, message)) else found[2]
        return f"{key} names '{name}', which is not a {found[1]}. Give a class that is one. {hint}"
    if found := re.search(r"unrecognized arguments: (\S+)", message):
        return f"'{found[1]}' belongs to no option. Options begin with --, as in --trainer.rounds 20. {hint}"
    if found := re.search(r"argument --([\w.]+): expected one argument", message):
        return f"--{found[1]} has no value. Write it after the option, as in --trainer.rounds 20. {hint}"
    if found := re.search(r"Unable to load config '(.*?)'", message):
        return f"{key.split('.')[0]} is '{found[1]}', which is not a YAML file. Give a file, or options one by one."
    if found := re.search(r'Linked "([\w.]+)" must be given via "(\w+)"', message):
        return f"{found[1]} is set by --{found[2]}. Give that instead."
    if found := re.search(r"argument (\w+) --> ([\w.]+):", message):
        return f"{found[2]} is set by --{found[1]}. Give that instead."
    if found := re.search(r"Does not validate against any(?:.|\n)*Given value: (.*)", message):
        return f"{key} is {found[1][:_LONGEST]!r}, which it cannot be. Give a class_path with its init_args. {hint}"
    return " ".join(message.split())


def unknown_key(key: str, parser: ArgumentParser, files: Mapping[str, object]) -> str:
    """A key that nothing takes: the nearest one is suggested."""
    group, _, name = key.partition(".")
    name = name.removeprefix("init_args.")
    if group == "trainer" and name in REFUSED_TRAINER_ARGUMENTS:
        reason = REFUSED_TRAINER_ARGUMENTS[name]
        return f"{place(files, key=key)}trainer.{name} makes no sense in a federated run: {reason}"
    asked = f"{group}.{name}" if name else group
    known = {option for option in known_options(parser) if not asked.startswith(f"{option}.")}
    typed = asked if name or place(files, key=key) else f"--{asked}"
    where = f"{place(files, key=key)}'{typed}' is not an option"
    if asked in known:  # of another class
        return f"{where} of this {'data set' if group == 'data' else 'algorithm'}. {see_help(parser)}"
    return f"{where}. {meant(asked, sorted(known))}{see_help(parser)}"


def meant(asked: str, known: Sequence[str]) -> str:
    """`Did you mean 'model.lr'? `: a near name in the same place, the same name elsewhere, or what is nearest."""
    place_of, _, name = asked.rpartition(".")
    beside = {option.rpartition(".")[2]: option for option in known if option.rpartition(".")[0] == place_of}
    elsewhere = sorted((option for option in known if option.endswith(f".{name}")), key=lambda one: one.count("."))
    if place_of and (close := difflib.get_close_matches(name, beside, n=1, cutoff=_CLOSE)):
        return f"Did you mean '{beside[close[0]]}'? "
    if not place_of:  # on the command line alone: a config's keys have a place
        longer = [f"--{option}" for option in beside if option.startswith(f"{name}_")]
        options = [*longer, *(f"--{option}" for option in elsewhere)] or near_anywhere(name, known)
        return f"Did you mean '{options[0]}'? " if options else ""
    return f"Did you mean '{elsewhere[0]}'? " if elsewhere else nearest(asked, known)


def near_anywhere(name: str, known: Sequence[str]) -> list[str]:
    """The option whose last word is nearest, in the highest place."""
    options = {option.rpartition(".")[2]: option for option in sorted(known, key=lambda one: -one.count("."))}
    return [f"--{options[close]}" for close in difflib.get_close_matches(name, options, n=1, cutoff=_CLOSE)]


def unknown_class(key: str, name: str, files: Mapping[str, object]) -> str:
    """A class that cannot be found."""
    base = _BASES.get(key)
    names = [f"fedlit.{net}" for net in models.__all__] if key == "model.net" else []
    names += sorted(known.__name__ for known in subclasses(base)) if base is not None else []
    known = f"Known: {', '.join(names)}; or give" if names else "Give"
    listed = f"{known} the import path of your own (package.module.Class)."
    found = f"{place(files, value=name)}{key} names the class '{name}', which does not exist."
    typed = f"fedlit.{name}" if key == "model.net" and "." not in name else name
    return f"{found} {nearest(typed, names)}{listed}"


def known_options(parser: ArgumentParser) -> Iterable[str]:
    """Every option of the command line, and those of all known classes."""
    for action in parser._actions:  # argparse has no public list of its options
        yield from (
            option.removeprefix("--")
            for option in action.option_strings
            if option.startswith("--") and not option.endswith(("+", ".help"))
        )
    for place_of, base in _BASES.items():
        for known in [base, *subclasses(base)]:
            for ancestor in known.__mro__:
                if "__init__" in vars(ancestor) and issubclass(ancestor, base):
                    yield from (f"{place_of}.{name}" for name in argument_names(ancestor))
    for net in models.__all__:
        yield from (f"model.net.{name}" for name in argument_names(getattr(models, net)))


def argument_names(known: type[Any]) -> list[str]:
    """What a class takes by name."""
    own = inspect.signature(known).parameters.values()
    return [one.name for one in own if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]


def subclasses(base: type[Any]) -> list[type[Any]]:
    """All known subclasses of fedlit's."""
    found = [known for known in base.__subclasses__() if known.__module__.startswith("fedlit.")]
    return found + [deeper for known in found for deeper in subclasses(known)]


def place(files: Mapping[str, object], *, key: str | None = None, value: str | None = None) -> str:
    """`file.yaml: ` where one of the given configs holds this key, this value, or both in one entry."""
    for path, content in files.items():
        for name, held in flatten(content).items():
            option = name.replace("init_args.", "")
            if (key is None or f"{option}.".startswith(f"{key}.")) and (value is None or str(held) == value):
                return f"{Path(path).name}: "
    return ""


def plain_type(hint: str) -> str:
    """A type as a person says it."""
    if choices := re.search(r"Literal\[(.*)\]", hint):
        return f"{'one of ' if ',' in choices[1] else ''}{choices[1].replace(chr(39), '')}"
    words = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}
    words |= {"collections.abc.Sequence": "a list"}
    name = re.sub(r"<class '(.*)'>", r"\1", hint)
    return words.get(name, name)


def read_yaml(path: str) -> object:
    """A config file's content; an error names the file and the line."""
    try:
        return load_yaml(Path(path).read_text(encoding="utf-8"))
    except TwiceError as error:
        first, second = error.lines
        raise ConfigError(
            f"{path}, line {second}: '{error.key}' is already given in line {first}. Keep one of the two."
        ) from error
    except TooLargeError as error:
        raise ConfigError(too_large(error, path)) from error
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        if "'\\t'" in str(error.problem):
            raise ConfigError(f"{path}{line}: there is a tab, which YAML does not take. Indent with spaces.") from error
        raise ConfigError(f"{path}{line}: this is not YAML ({error.problem}). Fix that line.") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read ({' '.join(str(error).split())}). Give a YAML file.") from error


def too_large(error: TooLargeError, path: str = "") -> str:
    """What is said of a document that is far larger than it looks."""
    line = error.problem_mark.line + 1
    where = f"{path}, line {line}" if path else f"An option's value, line {line}"
    return f"{where}: {error.problem}. No setting needs that: write the values out, without anchors and aliases."


def bounded(load: Callable[[str], Any]) -> Callable[[str], Any]:
    """The same loader of YAML for texts that are no larger than they look, ConfigError for others."""

    def load_bounded(stream: str) -> Any:
        try:
            check_size(stream)
        except TooLargeError as error:
            raise ConfigError(too_large(error)) from error
        try:
            return load(stream)
        except ValueError as error:  # a number of thousands of digits: the parser takes it for a text, and refuses that
            raise yaml.YAMLError(str(error)) from error

    return load_bounded
