"""Engines train a cohort: `sequential` is the reference, `vectorized` the fast one. They name no algorithm."""
