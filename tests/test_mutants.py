"""The list of mutants fits the source; `python -m tests.mutants` tries them, which takes minutes."""

from pathlib import Path

import pytest

from tests.mutants import Mutant, StaleMutantError
from tests.mutants.listed import MUTANTS

ROOT = Path(__file__).parents[1]


def test_every_mutant_changes_one_place_of_the_source_and_names_tests_that_exist() -> None:
    for mutant in MUTANTS:
        assert compile(mutant.changed(ROOT), mutant.file, "exec")
        for target in mutant.targets:
            file, _, test = target.partition("::")
            assert f"def {test.partition('[')[0]}" in (ROOT / file).read_text()
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_a_mutant_that_no_longer_fits_says_so() -> None:
    stale = Mutant("stale", "keys.py", "no such text", "", "", ())
    with pytest.raises(StaleMutantError, match="Mutant stale: its old text occurs 0 times in fedlit/keys.py"):
        stale.changed(ROOT)
