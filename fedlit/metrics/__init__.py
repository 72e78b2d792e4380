"""What is measured: measures with their formulas, metric names, numbers as text.

Who is measured, and when, is decided in `evaluation`.
"""
