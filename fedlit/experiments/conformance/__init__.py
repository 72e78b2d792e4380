"""What every algorithm must pass, measured: `check_conformance(make)` for one, `fedlit conformance` for all."""

from fedlit.experiments.conformance.checks import Measured, check_conformance

__all__ = ["Measured", "check_conformance"]
