"""Operators in C++ beside a Python file, built once on a machine and kept."""

import hashlib
import logging
import os
import platform
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from fedlit.files import replacing

log = logging.getLogger("fedlit")

FLAGS = ("-std=c++20", "-O3", "-march=native", "-shared", "-fPIC")


def cxx() -> str | None:
    """The C++ compiler: the one in CXX, else the first of g++, clang++ and c++; or None."""
    chosen = os.environ.get("CXX")
    paths = (shutil.which(name) for name in ([chosen] if chosen else ["g++", "clang++", "c++"]))
    return next((name for name in paths if name), None)


@cache
def why_broken(command: str) -> str | None:
    """Why this compiler cannot build a library of one line, or None."""
    try:
        with TemporaryDirectory() as folder:
            line = [command, "-shared", "-fPIC", "-x", "c++", "-", "-o", str(Path(folder, "tried.so"))]
            subprocess.run(line, input="int tried() { return 0; }", check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        return said(error)
    except OSError as error:
        return str(error)
    return None


def said(error: subprocess.CalledProcessError) -> str:
    """The end of the compiler's error output."""
    return " ".join(error.stderr.split()[-20:]) or f"it ends with code {error.returncode} and without a word"


@cache
def load_operators(source: Path, folder: Path) -> str | None:
    """Load a file's operators into torch, and build them first if needed; returns None, or why that failed."""
    command = cxx()
    if command is None:
        return "there is no C++ compiler"
    library = folder / f"{source.stem}-{library_key(source, command)}.so"
    try:
        if not library.exists():
            log.info(f"building {source.name}, once: about 10 s")
            _build(command, source, library)
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]  # torch's
    except subprocess.CalledProcessError as error:
        return f"{command} could not build it: {said(error)}"
    except OSError as error:
        return f"it could not be loaded: {error}"
    return None


def _build(command: str, source: Path, library: Path) -> None:
    """Compile beside the library and move it there at once: processes may build at the same time."""
    torch_folder = Path(torch.__file__).parent
    with replacing(library, shared=True) as built:
        places = [f"-I{torch_folder / 'include'}", f"-L{torch_folder / 'lib'}"]
        line = [command, *FLAGS, str(source), *places, "-ltorch_cpu", "-o", str(built)]
        subprocess.run(line, check=True, capture_output=True, text=True)


def library_key(source: Path, command: str) -> str:
    """A hash of all that a library depends on: source with the headers beside it, compiler, torch and CPU."""
    version = subprocess.run([command, "--version"], capture_output=True, text=True, check=False).stdout
    headers = (source.with_name(name) for name in re.findall(r'^#include "(.+)"', source.read_text(), re.MULTILINE))
    texts = [file.read_text() for file in (source, *headers)]
    parts = [*texts, *FLAGS, version, torch.__version__, platform.machine(), cpu_features()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def cpu_features() -> str:
    """The CPU's features, as far as the system lists them: -march=native depends on them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
