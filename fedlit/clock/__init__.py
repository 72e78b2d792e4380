"""Simulated time as data: how long clients take, who reports in time, how long a round lasts.

No threads and no state; which server waits for whom is in `rounds`.
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
