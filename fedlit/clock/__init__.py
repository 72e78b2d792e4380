"""Simulated time as data: how long clients take, which of them report in time, and how long a round lasts.

There are no threads and no state here. Which server waits for which clients is in `rounds`.
"""

from fedlit.clock.clock import Clock, Reports
from fedlit.clock.distributions import Constant, Distribution, Exponential, LogNormal, Uniform, Weibull
from fedlit.clock.latency import Latency
from fedlit.clock.trace import Trace

__all__ = [
    "Clock",
    "Constant",
    "Distribution",
    "Exponential",
    "Latency",
    "LogNormal",
    "Reports",
    "Trace",
    "Uniform",
    "Weibull",
]
