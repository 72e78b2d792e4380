"""Engines, which train a cohort: one client after the other, many at once, compiled, on a device, in several processes.

Nothing here knows a server or an algorithm.
"""
