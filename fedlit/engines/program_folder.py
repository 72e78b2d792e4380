"""Where compiled programs are kept between runs: a private folder of the cache, with room, and no half-written file."""

import atexit
import hashlib
import logging
import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp
from typing import Any

import torch

from fedlit.engines.inductor_loops import Loops
from fedlit.errors import RunError
from fedlit.files import cache_home, make_private, replacing

log = logging.getLogger("fedlit")

_HERE = Path(__file__).parent
BUILDERS = tuple(
    _HERE / name
    for name in (
        *("attention.py", "compiler.py", "convolution.py", "inductor_loops.py", "matmul.py", "recurrence.py"),
        *("inductor_loops.h", "products.h", "recurrence.h"),
    )
)
"""Files that decide the compiled code of a graph."""
ROOM = 32 << 20
"""Bytes of disk that a run's programs may need; one run compiles less."""


def use_cache_folder(loops: Loops = "lean") -> None:
    """Set the folder in which torch's compiler keeps programs, and let no half-written file appear there."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_folder(loops))
    build_whole_files()


@cache
def build_whole_files() -> None:
    """Let torch's C++ builds appear at once: a half library, left by a kill, would be loaded by every later run."""
    from fedlit.engines.inductor import codecache, cpp_builder

    cpp_builder.run_compile_cmd = partial(build_beside, cpp_builder.run_compile_cmd)
    find = codecache._precompile_header
    codecache._precompile_header = partial(known_header, find)  # type: ignore[assignment]  # no cache is asked for


_UNCHECKED: dict[str, Callable[[], str]] = {}
"""Path of a precompiled header that was taken on trust -> what finds the one that is right."""


def known_header(find: Callable[..., str], header: str, command_line: str, **options: Any) -> str:
    """The path of torch's precompiled header; where it was found before, without hashing all that it includes.

    torch asks for it even if no program has to be built, and takes longer to find it than to load a program. Before
    anything is built with it, it is found by torch (`build_beside`).
    """
    key = hashlib.sha256("\0".join((header, command_line, torch.__version__)).encode()).hexdigest()[:16]
    note = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / f"header-{key}"

    def found() -> str:
        path = find(header, command_line, **options)
        with suppress(OSError), replacing(note, shared=True) as draft:
            draft.write_text(path)
        return path

    with suppress(OSError):
        path = note.read_text()
        if Path(path).exists():
            _UNCHECKED[path] = found
            return path
    return found()


def build_beside(run: Callable[[str, str], None], command_line: str, cwd: str) -> None:
    """Run the C++ compiler into a temporary file and rename it when complete; torch holds a lock on the target."""
    for header in [header for header in _UNCHECKED if header in command_line]:
        command_line = command_line.replace(header, _UNCHECKED.pop(header)())
    words = shlex.split(command_line)
    index = words.index("-o") + 1
    output = Path(words[index])
    for leftover in output.parent.glob(f"{output.name}.*.part"):
        leftover.unlink(missing_ok=True)  # of a killed process
    part = output.with_name(f"{output.name}.{os.getpid()}.part")
    run(shlex.join([*words[:index], str(part), *words[index + 1 :]]), cwd)
    part.replace(output)


def cache_folder(loops: Loops = "lean") -> Path:
    """The folder of compiled programs: in the cache, or for this process alone."""
    return writable(programs_folder(loops))


def programs_folder(loops: Loops = "lean") -> Path:
    """The cache's folder of programs; it depends on `BUILDERS`, because torch's key of a program does not."""
    return cache_home() / (f"inductor-{builders_key()}" if loops == "lean" else "inductor-alone")


@cache
def builders_key() -> str:
    """A hash of `BUILDERS`."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in BUILDERS)).hexdigest()[:12]


@cache
def writable(folder: Path) -> Path:
    """The folder; or, if it cannot be written or others can write to it, a temporary one: no run fails by its cache."""
    reason = refusal(folder)
    if reason is None:
        return folder
    log.warning(
        f"{folder} is not used as a cache: {reason}. Programs are compiled anew in every run. Give a folder in "
        f"FEDLIT_CACHE in which you can write, and nobody else (chmod 700), with {ROOM >> 20} MB free."
    )
    return own_folder()


def own_folder() -> Path:
    """A temporary folder for this process alone, removed at its end."""
    try:
        folder = Path(mkdtemp(prefix="fedlit-"))
    except OSError as error:
        reason: str | None = str(error.strerror)
    else:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        reason = lack_of_room(folder)
        if reason is None:
            return folder
    raise RunError(
        f"Programs cannot be compiled: there is no room for them in FEDLIT_CACHE nor among temporary files ({reason}). "
        f"Free {ROOM >> 20} MB and continue with --resume, or take --trainer.engine sequential for a new run."
    )


def refusal(folder: Path) -> str | None:
    """Make the folder; returns None, or why programs cannot be kept in it."""
    try:
        return make_private(folder) or lack_of_room(folder)
    except OSError as error:
        return f"it cannot be written ({error.strerror})"


def lack_of_room(folder: Path) -> str | None:
    """Why programs cannot be written into a folder, or None.

    It must be called before torch tests the processor's instructions: on a full disk that test fails, torch concludes
    that an instruction does not exist, and the program would have other bits.
    """
    try:
        with TemporaryFile(dir=folder) as file:
            reserve(file.fileno())
    except OSError as error:
        return str(error.strerror)
    return None


def reserve(file: int) -> None:
    """Reserve as much of the disk as programs need."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, ROOM)
    else:  # macOS
        os.write(file, bytes(ROOM))


@contextmanager
def room_explained() -> Iterator[None]:
    """Explain any compiler error inside the block by a full disk, if the disk is full by now."""
    try:
        yield
    except Exception as error:
        reason = refusal(cache_folder())
        if reason is None:
            raise
        raise RunError(
            f"A program could not be compiled into {cache_folder()}: {reason}. Free some space, or "
            "give another folder in FEDLIT_CACHE; then continue with --resume."
        ) from error
