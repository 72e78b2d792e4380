"""The real files: those of FEDLIT_DATA, or those that lie packed beside the checkout; else the tests are skipped."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PACKED = Path(__file__).parents[2] / "shared" / "data" / "unpack.py"

Real = Callable[[str, str], Path]


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Real:
    """`real("mnist", "MNIST/raw")`: a root in which this folder is, unpacked once for all processes of a session."""
    named = os.environ.get("FEDLIT_DATA")  # read at the session's start: fixtures of other tests remove it
    base = tmp_path_factory.getbasetemp()
    session = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def root(packed_name: str, folder: str) -> Path:
        if named:
            if not (Path(named) / folder).exists():
                pytest.skip(f"FEDLIT_DATA is {named}, which has no {folder}")
            return Path(named)
        if not PACKED.is_file():
            pytest.skip(f"FEDLIT_DATA is not set and there is no {PACKED}")
        target = session / f"unpacked-{packed_name}"
        with (session / f"unpacked-{packed_name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                command = [sys.executable, str(PACKED), "--root", f"{target}.part", "--only", packed_name]
                subprocess.run(command, check=True, capture_output=True, timeout=500)
                Path(f"{target}.part").rename(target)
        return target

    return root
