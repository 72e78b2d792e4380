"""The package as users get it: the sdist is the project, the wheel has every file and runs outside of a checkout."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

from fedlit.config.files import shipped_configs

ROOT = Path(__file__).parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, SETUPTOOLS = SETTINGS["project"], SETTINGS["tool"]["setuptools"]
SHIPPED = ("configs", "reproduce", "sweeps")
"""Folders of the root that are fedlit/… in the wheel."""
WHOLE = ("benchmarks", "docs", "examples", "fedlit", "tests", *SHIPPED)
"""Folders of the root that are in the sdist, file by file."""
NOT_OURS = shutil.ignore_patterns("__pycache__", "made", "*.egg-info", ".*_cache")
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def files_in(folder: Path) -> set[str]:
    """Files of the project below a folder, as paths from there."""
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(path) for path in files if not {"__pycache__", "made"} & set(path.parts)}


def built(kind: str, tree: Path, out: Path) -> Path:
    """The file that setuptools builds from a tree, as pip would call it; nothing is downloaded."""
    done = subprocess.run([sys.executable, "-c", BUILD, kind, str(out)], cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, unpacked; it is built from a copy, because a build leaves files in its tree."""
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("sdist")
    for name in (*WHOLE, ".github"):
        shutil.copytree(ROOT / name, copy / name, ignore=NOT_OURS)
    for path in (path for path in ROOT.iterdir() if path.is_file()):
        shutil.copy(path, copy)
    with tarfile.open(built("build_sdist", copy, out)) as archive:
        archive.extractall(out, filter="data")
    return out / f"fedlit-{PROJECT['version']}"


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the sdist's files make."""
    return built("build_wheel", sdist, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`fedlit`, installed from the wheel alone into an empty folder."""
    target = tmp_path_factory.mktemp("installed")
    words = ["install", "-q", "--no-deps", "--no-index", "--no-compile", "--target", str(target), str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    return target / "bin" / "fedlit"


def said_by(command: Path, words: str, folder: Path) -> str:
    """What the installed command prints in a folder."""
    environment = os.environ | {"PYTHONPATH": str(command.parents[1]), "COLUMNS": "200"}
    line = [str(command), *words.split()]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def missing(wanted: Iterable[str], held: Iterable[str]) -> list[str]:
    return sorted(set(wanted) - set(held))


def test_pyproject_lists_every_folder_with_code_and_no_other() -> None:
    folders = {".".join(path.relative_to(ROOT).parent.parts) for path in (ROOT / "fedlit").rglob("*.py")}
    listed = set(SETUPTOOLS["packages"]) - set(SETUPTOOLS["package-dir"])
    where = "`packages` of [tool.setuptools] in pyproject.toml"
    assert not missing(folders, listed), f"Not in the wheel: add {missing(folders, listed)} to {where}."
    assert not missing(listed, folders), f"There is no such folder: take {missing(listed, folders)} out of {where}."


def test_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    wanted = {f"fedlit/{name}" for name in files_in(ROOT / "fedlit")} | {"fedlit_start.py"}
    wanted |= {f"fedlit/{folder}/{name}" for folder in SHIPPED for name in files_in(ROOT / folder)}
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert {"fedlit/py.typed", "fedlit/engines/native.cpp", "fedlit/engines/inductor_loops.h"} <= wanted
    assert missing(wanted, held) == [], "not in the wheel: see package-data of [tool.setuptools] in pyproject.toml"
    assert missing(held, wanted) == []


def test_sdist_holds_the_project(sdist: Path) -> None:
    wanted = {f"{folder}/{name}" for folder in (*WHOLE, ".github") for name in files_in(ROOT / folder)}
    wanted |= {"CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "SECURITY.md"}
    wanted |= {"constraints.txt", "fedlit_start.py", "pyproject.toml", ".pre-commit-config.yaml"}
    assert missing(wanted, files_in(sdist)) == [], "not in the sdist: see MANIFEST.in"


def test_installed_wheel_lists_its_configs_outside_of_a_checkout(command: Path, tmp_path: Path) -> None:
    said = said_by(command, "list configs", tmp_path)
    assert said_by(command, "--version", tmp_path) == f"fedlit {PROJECT['version']}\n"
    assert [name for name in shipped_configs() if name not in said] == []


@pytest.mark.slow
def test_installed_wheel_trains_outside_of_a_checkout(command: Path, tmp_path: Path) -> None:
    options = "--trainer.rounds 1 --trainer.engine sequential --data.num_clients 12 --run run"
    assert "run folder: run" in said_by(command, f"fit --config synthetic_fedbc {options}", tmp_path)
    assert (tmp_path / "run" / "summary.json").is_file()


def test_citation_and_changelog_name_the_version_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    releases = re.findall(r"^## (\d\S+) — (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert releases[0] == (PROJECT["version"], str(citation["date-released"]))
    assert citation["version"] == PROJECT["version"]
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in PROJECT["authors"]]


def test_ci_runs_the_two_commands_on_every_python_that_is_promised() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())["jobs"]
    promised = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert jobs["test"]["strategy"]["matrix"]["python"] == promised
    assert PROJECT["requires-python"] == f">={promised[0]}"
    assert [step["run"] for step in jobs["test"]["steps"] if "run" in step] == ["make run", "make test"]


def test_a_commit_is_checked_by_the_tools_of_make_check() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    tools = re.findall(r"^\t\$\(BIN\)/((?:ruff|mypy).*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert sorted(hook["entry"] for hook in hooks) == sorted(tools)
