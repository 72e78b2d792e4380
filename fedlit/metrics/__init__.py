"""Measures with their formulas, the catalogue of metric names, numbers as text.

`evaluation` decides who is measured, and when.
"""
