"""Ready-made middlewares: for a tool, a toolkit or a turn."""

from toolbus.middlewares.cache import Cache
from toolbus.middlewares.log import Log
from toolbus.middlewares.metrics import Metrics
from toolbus.middlewares.output_limit import OutputLimit
from toolbus.middlewares.rate_limit import RateLimit
from toolbus.middlewares.retry import Retry
from toolbus.middlewares.time_limit import TimeLimit

__all__ = [
    "Cache",
    "Log",
    "Metrics",
    "OutputLimit",
    "RateLimit",
    "Retry",
    "TimeLimit",
]
