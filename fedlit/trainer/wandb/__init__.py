"""Weights & Biases: what a run holds there (docs/wandb.md), and a workspace that shows it."""

from fedlit.trainer.wandb.logger import WandbRun
from fedlit.trainer.wandb.users import WandbUsers

__all__ = ["WandbRun", "WandbUsers"]
