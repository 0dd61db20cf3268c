"""Metrics of actuators."""

from prometheus_client import Counter, Histogram

ACTUATOR_CALLS = Counter(
    "millrace_actuator_calls",
    "Orders and observations, by the kind of actuator and the code of the error.",
    ["kind", "action", "code"],
)
ACTUATOR_SECONDS = Histogram(
    "millrace_actuator_seconds",
    "Time of an order or observation.",
    ["kind", "action"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
