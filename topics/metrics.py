"""Metrics of consumer groups, of records, of stages, and of unavailable partitions."""

from prometheus_client import Counter, Gauge, Histogram

from core.stages import STAGE_BUCKETS_S

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
PARTITION_UNREADABLE_SECONDS = Gauge(
    "millrace_kafka_partition_unreadable_seconds",
    "How long this process could not read a partition that it reads; else 0",
    ["topic", "partition"],
)
STAGE_SECONDS = Histogram(
    "millrace_item_stage_seconds",
    "Time in a stage, once for each record, or each part of a batch",
    ["stage", "class"],
    buckets=STAGE_BUCKETS_S,
)
FOREIGN_OBJECTS = Counter(
    "millrace_foreign_objects_total",
    "Records that named a stored object of another job, which was not opened, by field",
    ["field"],
)
