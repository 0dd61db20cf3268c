"""Metrics of consumer groups and of the partitions that records are sent to."""

from prometheus_client import Gauge

LAG = Gauge(
    "millrace_kafka_lag",
    "Records of this process's partitions that its group has not read",
    ["topic", "group"],
)
PARTITION_UNAVAILABLE_SECONDS = Gauge(
    "millrace_kafka_partition_unavailable_seconds",
    "How long records of this process wait for a partition that acknowledges none; else 0",
    ["topic", "partition"],
)
