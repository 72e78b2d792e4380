"""Runs on disk: the run folder, its lock and config.yaml, runs that are read back and grouped.

Nothing here needs torch, or a run in progress.
"""

from fedlit.results.groups import Group, group_runs
from fedlit.results.runs import Run, find_runs, read_run

__all__ = ["Group", "Run", "find_runs", "group_runs", "read_run"]
