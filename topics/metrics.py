"""Metrics of consumer groups."""

from prometheus_client import Gauge

LAG = Gauge(
    "millrace_kafka_lag",
    "Records of this process's partitions that its group has not read",
    ["topic", "group"],
)
