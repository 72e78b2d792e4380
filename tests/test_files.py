"""Files: the cache is the user's alone or it is not used; a file is replaced as a whole, whoever else writes it."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fedlit.data.mapped_arrays import SMALLEST, shared
from fedlit.engines.compiler import missing_operators
from fedlit.engines.cpp_build import cxx, library_key
from fedlit.engines.program_folder import cache_folder, writable
from fedlit.files import make_private, replacing, write_text


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    writable.cache_clear()
    monkeypatch.setenv("FEDLIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def open_to_others(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)


def test_folders_of_the_cache_are_the_users_alone(cache: Path) -> None:
    folder = cache_folder()
    assert folder.parent == cache
    assert [place.stat().st_mode & 0o777 for place in (cache, folder)] == [0o700, 0o700]


@pytest.mark.parametrize("name", ["", "operators"], ids=["the cache", "a folder of it"])
def test_a_cache_in_which_others_may_write_is_not_used(
    cache: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    open_to_others(cache / name)
    cache.chmod(0o777 if not name else 0o700)
    own = writable(cache / "operators")
    assert cache not in own.parents
    assert own.stat().st_mode & 0o777 == 0o700
    (line,) = [message for message in caplog.messages if "others may write in" in message]
    assert "FEDLIT_CACHE" in line


def test_a_cache_of_another_user_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_private(cache / "operators")
    monkeypatch.setattr(os, "getuid", lambda: cache.stat().st_uid + 1)
    assert make_private(cache / "operators") == f"{cache} belongs to another user"


@pytest.mark.skipif(cxx() is None, reason="there is no C++ compiler")
def test_a_library_that_others_planted_is_not_loaded(cache: Path, tmp_path: Path) -> None:
    source, planted, proof = tmp_path / "mine.cpp", tmp_path / "planted.cpp", tmp_path / "it ran"
    source.write_text("// nothing\n")
    planted.write_text(f'#include <cstdio>\n__attribute__((constructor)) void run() {{ fopen("{proof}", "w"); }}\n')
    open_to_others(cache)
    open_to_others(cache / "operators")
    command = cxx()
    assert command is not None
    library = cache / "operators" / f"mine-{library_key(source, command)}.so"
    subprocess.run([command, "-shared", "-fPIC", str(planted), "-o", str(library)], check=True)
    assert missing_operators(source) is None
    assert not proof.exists()


def test_large_arrays_are_not_mapped_where_others_could_change_them(cache: Path) -> None:
    open_to_others(cache)
    array = np.zeros(SMALLEST, np.uint8)
    assert shared(array) is array


def test_two_that_write_the_same_file_at_once_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    with replacing(path, shared=True) as first, replacing(path, shared=True) as second:
        first.write_text("first")
        second.write_text("second")
        assert not path.exists()
    assert path.read_text() == "first"  # its block ends last
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_regular_file_is_written_as_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "hello")
    assert os.read(end, 100) == b"hello"
    os.close(end)
    assert pipe.is_fifo()


def test_an_array_of_which_a_killed_process_wrote_half_is_written_anew(cache: Path) -> None:
    array = np.arange(SMALLEST, dtype=np.uint8)
    mapped = np.array(shared(array))
    (file,) = (cache / "data").iterdir()
    file.write_bytes(file.read_bytes()[:100])
    assert np.array_equal(shared(array), mapped)
    assert file.stat().st_size == array.nbytes
