"""Weights & Biases: what a run holds there (docs/wandb.md), and a workspace that shows it."""

from fedlit.tracking.logger import WandbRun
from fedlit.tracking.users import WandbUsers

__all__ = ["WandbRun", "WandbUsers"]
