"""Operators that are built on the machine: what happens where they cannot be, and what asks for another library."""

from pathlib import Path

import pytest

from fedlit.engines import cpp_build
from fedlit.engines.convolution import SOURCE


def test_without_a_compiler_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert cpp_build.load_operators(SOURCE, tmp_path) == "there is no C++ compiler"


def test_a_compiler_that_fails_is_a_reason_and_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    reason = cpp_build.load_operators(SOURCE, tmp_path)
    assert reason is not None
    assert "could not build it" in reason
    assert list(tmp_path.iterdir()) == []


def test_another_cpu_or_source_has_a_library_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.cpp"
    other.write_text("// another")
    keys = {cpp_build.library_key(SOURCE, "g++"), cpp_build.library_key(other, "g++")}
    monkeypatch.setattr(cpp_build, "cpu_features", lambda: "another CPU")
    keys.add(cpp_build.library_key(SOURCE, "g++"))
    assert len(keys) == 3
