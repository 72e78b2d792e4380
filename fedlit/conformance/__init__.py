"""What every algorithm must pass, measured: `check(make)` for one, `fedlit conformance` for all that fedlit has."""

from fedlit.conformance.checks import Measured, check

__all__ = ["Measured", "check"]
