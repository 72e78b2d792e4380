"""The parser's errors in plain words: one paragraph that names the key, what is wrong and how to fix it."""

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
"""Similarity, from 0 to 1, at which an option of the same group is suggested."""
_LONGEST = 80
"""Most characters of a value in a message."""


def explain(message: str, parser: ArgumentParser, files: Mapping[str, object]) -> str:
    """The parser's message in plain words; `files` are the configs on the command line, path -> content."""
    key = ".".join(re.findall(r'Parser key "([\w.]+)"', message))
    if match := re.search(r"unrecognized arguments: --([\w.-]+)", message):
        return unknown_key(match[1].replace("-", "_"), parser, files)
    if match := re.search(r"Group '(\w+)' does not accept option '([\w.]+)'", message):
        return unknown_key(f"{match[1]}.{match[2]}", parser, files)
    if match := re.search(r"Option '([\w.]+)' is not accepted", message):
        return unknown_key(f"{key}.{match[1]}" if key else match[1], parser, files)
    if match := re.search(r"--([\w.]+)\.help: Expected a dot import path string: (\S+)", message):
        return unknown_class(f"{key}.{match[1]}" if key else match[1], match[2], files)
    if match := re.search(r"dot import path string: (\S+)|class_path '(\S+)':\s+(?:module '|No module named)", message):
        return unknown_class(key, match[1] or match[2], files)
    if match := re.search(r"Expected an? (.+?)\. Got value: (.*)", message):
        return (
            f"{file_with(files, key=key, value=match[2])}{key} is {match[2]!r}, but it must be {plain_type(match[1])}."
        )
    if match := re.search(r"Errors:\n((?: *- Expected an? .*\n)+) *Given value type: .*\n *Given value: (.*)", message):
        hints = [plain_type(hint) for hint in re.findall(r"- Expected an? (.*)", match[1]) if "NoneType" not in hint]
        return f"{file_with(files, key=key, value=match[2])}{key} is {match[2]!r}, but it must be {' or '.join(hints)}."
    if match := re.search(r"arguments are required: (.*)", message):
        lacking = f"{key} lacks {match[1]}." if key else "Nothing says what to train."
        return f"{lacking} Name a config, such as --config synthetic_fedbc.yaml, or give each value. {see_help(parser)}"
    return misplaced(message, key, see_help(parser))


def see_help(parser: ArgumentParser) -> str:
    """A sentence that says where the options are listed."""
    return f"{parser.prog} --help lists every argument, {parser.prog} --model.help CLASS those of a class."


def misplaced(message: str, key: str, hint: str) -> str:
    """The error for a missing or misplaced word; else the parser's own message in one line."""
    if match := re.search(r"Multiple subclasses with name (\w+)\. .*: (.*)\.", message):
        return f"{key} names the class '{match[1]}', and there are several. Give one of {match[2]}."
    if match := re.search(
        r"not correspond to a subclass of (\w+)(?:.|\n)*?Given value: (?:{'class_path': ')?([^\s']+)", message
    ):
        option = rf"'{key.rpartition('.')[2]}': {{'class_path': '([^']+)'"  # one within a class's options
        name = inner[1] if (inner := re.search(option, message)) else match[2]
        return f"{key} names '{name}', which is not a {match[1]}. Give a class that is one. {hint}"
    if match := re.search(r"unrecognized arguments: (\S+)", message):
        return f"'{match[1]}' belongs to no option. Options begin with --, as in --trainer.rounds 20. {hint}"
    if match := re.search(r"argument --([\w.]+): expected one argument", message):
        return f"--{match[1]} has no value. Write it after the option, as in --trainer.rounds 20. {hint}"
    if match := re.search(r"Unable to load config '(.*?)'", message):
        return f"{key.split('.')[0]} is '{match[1]}', which is not a YAML file. Give a file, or options one by one."
    if match := re.search(r'Linked "([\w.]+)" must be given via "(\w+)"', message):
        return f"{match[1]} is set by --{match[2]}. Give that instead."
    if match := re.search(r"argument (\w+) --> ([\w.]+):", message):
        return f"{match[2]} is set by --{match[1]}. Give that instead."
    if match := re.search(r"Does not validate against any(?:.|\n)*Given value: (.*)", message):
        return f"{key} is {match[1][:_LONGEST]!r}, which it cannot be. Give a class_path with its init_args. {hint}"
    return " ".join(message.split())


def unknown_key(key: str, parser: ArgumentParser, files: Mapping[str, object]) -> str:
    """The error for an unknown key, with the nearest known one."""
    group, _, name = key.partition(".")
    name = name.removeprefix("init_args.")
    if group == "trainer" and name in REFUSED_TRAINER_ARGUMENTS:
        reason = REFUSED_TRAINER_ARGUMENTS[name]
        return f"{file_with(files, key=key)}trainer.{name} makes no sense in a federated run: {reason}"
    asked = f"{group}.{name}" if name else group
    known = {option for option in known_options(parser) if not asked.startswith(f"{option}.")}
    typed = asked if name or file_with(files, key=key) else f"--{asked}"
    where = f"{file_with(files, key=key)}'{typed}' is not an option"
    if asked in known:  # of another class
        return f"{where} of this {'data set' if group == 'data' else 'algorithm'}. {see_help(parser)}"
    hint = meant_of_class(asked, files) or meant(asked, sorted(known))
    return f"{where}. {hint}{see_help(parser)}"


def meant_of_class(asked: str, files: Mapping[str, object]) -> str:
    """`Did you mean 'data.alpha'? `: a similar option of the class that the last of the configs names."""
    group, _, name = asked.partition(".")
    named = [
        str(entry)
        for content in files.values()
        for key, entry in flatten(content).items()
        if key == f"{group}.class_path"
    ]
    base = _BASES.get(group)
    if base is None or not named or "." in name:  # below a class of the class
        return ""
    chosen = [known for known in subclasses(base) if known.__name__ == named[-1].rpartition(".")[2]]
    options = [option.partition(".")[2] for known in chosen for option in class_options(group, base, known)]
    close = difflib.get_close_matches(name, options, n=1, cutoff=_CLOSE)
    return f"Did you mean '{group}.{close[0]}'? " if close else ""


def meant(asked: str, known: Sequence[str]) -> str:
    """`Did you mean 'model.lr'? `: a similar name in the same group, the same name in another, or the nearest key."""
    group, _, name = asked.rpartition(".")
    same_group = {option.rpartition(".")[2]: option for option in known if option.rpartition(".")[0] == group}
    other_groups = sorted((option for option in known if option.endswith(f".{name}")), key=lambda one: one.count("."))
    if group and (close := difflib.get_close_matches(name, same_group, n=1, cutoff=_CLOSE)):
        return f"Did you mean '{same_group[close[0]]}'? "
    if not group:  # only on the command line: a config's keys have a group
        longer = [f"--{option}" for option in same_group if option.startswith(f"{name}_")]
        options = [*longer, *(f"--{option}" for option in other_groups)] or near_anywhere(name, known)
        return f"Did you mean '{options[0]}'? " if options else ""
    return f"Did you mean '{other_groups[0]}'? " if other_groups else nearest(asked, known)


def near_anywhere(name: str, known: Sequence[str]) -> list[str]:
    """The option whose last word is nearest; of several with that word, the one with the fewest dots."""
    options = {option.rpartition(".")[2]: option for option in sorted(known, key=lambda one: -one.count("."))}
    return [f"--{options[close]}" for close in difflib.get_close_matches(name, options, n=1, cutoff=_CLOSE)]


def unknown_class(key: str, name: str, files: Mapping[str, object]) -> str:
    """The error for an unknown class, with the nearest known one."""
    base = _BASES.get(key)
    names = [f"fedlit.{net}" for net in models.__all__] if key == "model.net" else []
    names += sorted(known.__name__ for known in subclasses(base)) if base is not None else []
    known = f"Known: {', '.join(names)}; or give" if names else "Give"
    listed = f"{known} the import path of your own (package.module.Class)."
    problem = f"{file_with(files, value=name)}{key} names the class '{name}', which does not exist."
    typed = f"fedlit.{name}" if key == "model.net" and "." not in name else name
    return f"{problem} {nearest(typed, names)}{listed}"


def known_options(parser: ArgumentParser) -> Iterable[str]:
    """Every option of the command line, and those of all known classes."""
    for action in parser._actions:  # argparse has no public list of its options
        yield from (
            option.removeprefix("--")
            for option in action.option_strings
            if option.startswith("--") and not option.endswith(("+", ".help"))
        )
    for group, base in _BASES.items():
        for known in [base, *subclasses(base)]:
            yield from class_options(group, base, known)
    for net in models.__all__:
        yield from (f"model.net.{name}" for name in argument_names(getattr(models, net)))


def class_options(group: str, base: type[Any], known: type[Any]) -> Iterable[str]:
    """The options of a class, with those that it hands on to the classes it is made from."""
    for ancestor in known.__mro__:
        if "__init__" in vars(ancestor) and issubclass(ancestor, base):
            yield from (f"{group}.{name}" for name in argument_names(ancestor))


def argument_names(known: type[Any]) -> list[str]:
    """The arguments that a class takes by name."""
    parameters = inspect.signature(known).parameters.values()
    return [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]


def subclasses(base: type[Any]) -> list[type[Any]]:
    """All subclasses that fedlit itself defines."""
    direct = [known for known in base.__subclasses__() if known.__module__.startswith("fedlit.")]
    return direct + [deeper for known in direct for deeper in subclasses(known)]


def file_with(files: Mapping[str, object], *, key: str | None = None, value: str | None = None) -> str:
    """`file.yaml: ` if one of the configs has an entry with this key and this value, else an empty text."""
    for path, content in files.items():
        for name, entry in flatten(content).items():
            option = name.replace("init_args.", "")
            if (key is None or f"{option}.".startswith(f"{key}.")) and (value is None or str(entry) == value):
                return f"{Path(path).name}: "
    return ""


def plain_type(hint: str) -> str:
    """A type hint in plain words."""
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
    """The error for a document that aliases or nesting make far too large."""
    line = error.problem_mark.line + 1
    where = f"{path}, line {line}" if path else f"An option's value, line {line}"
    return f"{where}: {error.problem}. No setting needs that: write the values out, without anchors and aliases."


def bounded(load: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wrap a loader of YAML: ConfigError for texts that aliases or nesting make far too large."""

    def load_bounded(stream: str) -> Any:
        try:
            check_size(stream)
        except TooLargeError as error:
            raise ConfigError(too_large(error)) from error
        try:
            return load(stream)
        except ValueError as error:  # a number of thousands of digits; the parser then refuses it as a text
            raise yaml.YAMLError(str(error)) from error

    return load_bounded
