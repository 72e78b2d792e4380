"""Mutants: fedlit with one change each, and the quick tests that must fail then (`python -m tests.mutants`)."""

from dataclasses import dataclass
from pathlib import Path


class StaleMutantError(Exception):
    """A mutant that no longer fits the source."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    name: str
    file: str
    """Below fedlit/."""
    old: str
    """Text that occurs there exactly once."""
    new: str
    breaks: str
    """The promise that the change breaks."""
    tests: tuple[str, ...]
    """Quick tests, below tests/, at least one of which must fail."""

    @property
    def targets(self) -> list[str]:
        """The tests as pytest is given them."""
        return [f"tests/{one}" for one in self.tests]

    def changed(self, root: Path) -> str:
        """The file's text with the change."""
        text = (root / "fedlit" / self.file).read_text()
        times = text.count(self.old)
        if times != 1:
            raise StaleMutantError(
                f"Mutant {self.name}: its old text occurs {times} times in fedlit/{self.file}, and must occur once: "
                f"{self.old!r}. Write in tests/mutants/listed.py what that line reads now."
            )
        return text.replace(self.old, self.new)
