"""Client steps per second of each engine, beside what a researcher writes by hand: `make bench`.

`python -m benchmarks --help` explains the options. Nothing here is part of the package that users install.
"""

import fedlit as fedlit  # first: it lets Lightning be imported beside a CPU-only torch
