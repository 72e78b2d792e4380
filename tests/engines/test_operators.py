"""Operators that are built on the machine: what happens where they cannot be, and what asks for another library."""

from pathlib import Path

import pytest

from fedlit.engines import operators
from fedlit.engines.convolution import SOURCE


def test_without_a_compiler_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert operators.load_operators(SOURCE, tmp_path) == "there is no C++ compiler"


def test_a_compiler_that_fails_is_a_reason_and_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    reason = operators.load_operators(SOURCE, tmp_path)
    assert reason is not None
    assert "could not build it" in reason
    assert list(tmp_path.iterdir()) == []


def test_another_cpu_or_source_has_a_library_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.cpp"
    other.write_text("// another")
    keys = {operators.library_key(SOURCE, "g++"), operators.library_key(other, "g++")}
    monkeypatch.setattr(operators, "cpu_features", lambda: "another CPU")
    keys.add(operators.library_key(SOURCE, "g++"))
    assert len(keys) == 3
