"""`python -m tests.mutants [--only NAME]`: change fedlit in one place at a time and see that quick tests fail.

The tree is copied to a temporary folder. Every mutant has a process of its own: a fork of this one, which has imported
all that takes long but not fedlit. The first run is of the unchanged tree: if that fails, nothing is proven. With
`--found FILE` each answer is written there, and a second call goes on with the mutants that have none.
"""

import argparse
import importlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mutants import Mutant, StaleMutantError
from tests.mutants.listed import MUTANTS

ROOT = Path(__file__).parents[2]
NOT_COPIED = shutil.ignore_patterns(".*", "build", "runs", "*.egg-info", "__pycache__", "made")
SAID = {0: "missed", 1: "caught"}
"""What pytest's exit codes mean here; another one is an error, such as a test that does not exist."""


def main() -> int:
    """1 if a mutant is missed, 2 if something cannot be tried."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", choices=[one.name for one in MUTANTS])
    parser.add_argument("--found", type=Path, metavar="FILE", help="write what is found here, and skip what it has")
    parser.add_argument("--list", action="store_true", help="list the mutants, and run nothing")
    args = parser.parse_args()
    known = answers(args.found)
    chosen = [one for one in MUTANTS if (not args.only or one.name in args.only) and one.name not in known]
    if args.list:
        print("\n".join(f"{one.name:26} {one.breaks}" for one in chosen))
        return 0
    try:
        for mutant in chosen:
            mutant.changed(ROOT)
    except StaleMutantError as error:
        print(error, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="fedlit-mutants-") as folder:
        known |= try_all(chosen, Path(folder).resolve() / "tree", args.found)
    counts = {word: list(known.values()).count(word) for word in dict.fromkeys(known.values())}
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    return 0 if set(known.values()) == {"caught"} else 2 if set(known.values()) - {"caught", "missed"} else 1


def answers(file: Path | None) -> dict[str, str]:
    """What an earlier call has found of each mutant; nothing where there was none."""
    if file is None or not file.exists():
        return {}
    return dict(line.split(" ", 1) for line in file.read_text().splitlines())


def try_all(mutants: Sequence[Mutant], tree: Path, kept: Path | None) -> dict[str, str]:
    """What is found of each mutant, and the table, a line for each as it is known."""
    shutil.copytree(ROOT, tree, ignore=NOT_COPIED)
    import_what_takes_long(tree)
    targets = list(dict.fromkeys(target for mutant in mutants for target in mutant.targets))
    log = tree.parent / "said.txt"
    code, seconds = run_tests(tree, targets, log)
    print(f"{'unchanged':26} {'passes' if code == 0 else 'fails':7} {seconds:5.0f} s", flush=True)
    if code != 0:
        print(log.read_text(), file=sys.stderr)
        sys.exit(2)
    found = {}
    for mutant in mutants:
        file = tree / "fedlit" / mutant.file
        text = file.read_text()
        file.write_text(mutant.changed(tree))
        code, seconds = run_tests(tree, ["-x", *mutant.targets], log)
        file.write_text(text)
        found[mutant.name] = SAID.get(code, f"error {code}")
        print(f"{mutant.name:26} {found[mutant.name]:7} {seconds:5.0f} s  {mutant.breaks}", flush=True)
        if code not in SAID:
            print(log.read_text(), file=sys.stderr)
        elif kept is not None:
            with kept.open("a") as answers_file:
                print(mutant.name, found[mutant.name], file=answers_file)
    return found


def import_what_takes_long(tree: Path) -> None:
    """torch, Lightning and others; Lightning needs a few lines of fedlit first, which are forgotten again."""
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.path.insert(0, str(tree))
    names = ("fedlit.data._torchvision", "pytorch_lightning", "matplotlib.pyplot", "pyarrow.parquet", "scipy.stats")
    for name in (*names, "hypothesis", "rich.progress", "jsonargparse", "torch.func"):
        importlib.import_module(name)
    forget_the_tree()


def forget_the_tree() -> None:
    """What is imported of fedlit and its tests: a mutant imports its own."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("fedlit", "fedlit_start", "tests")]:
        del sys.modules[name]


def run_tests(tree: Path, arguments: Sequence[str], log: Path) -> tuple[int, float]:
    """pytest's exit code in a fork, and the seconds that it took."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        code = 3
        try:
            code = run_here(tree, arguments, log)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), time.monotonic() - began


def run_here(tree: Path, arguments: Sequence[str], log: Path) -> int:
    """In the fork."""
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # a file that changes twice within a second has the same time
    sys.dont_write_bytecode = True
    forget_the_tree()
    return int(pytest.main(["-q", "-m", "not slow", "-p", "no:cacheprovider", *arguments]))


if __name__ == "__main__":
    sys.exit(main())
