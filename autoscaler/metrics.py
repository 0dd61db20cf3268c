"""Prometheus metrics of the autoscaler. Only the owner decides, so the others' gauges are empty."""

from prometheus_client import Counter, Gauge, Histogram

EPOCH = Gauge("millrace_autoscaler_epoch", "The epoch of the autoscaler that decides, as read")
IS_OWNER = Gauge("millrace_autoscaler_owner", "1 while this process decides")
TARGET = Gauge("millrace_scaling_target", "Replicas that a pool is to have", ["pool"])
LIVE = Gauge("millrace_scaling_live", "Replicas that are warm or start", ["pool"])
STANDBY = Gauge("millrace_scaling_standby", "Replicas of the warm pool that are loaded", ["pool"])
NEED = Gauge("millrace_scaling_need", "Replicas that a pool needs, by term", ["pool", "term"])
STALE = Gauge("millrace_scaling_stale_input", "1 while an input is stale", ["pool", "input"])
DECISIONS = Counter(
    "millrace_scaling_decisions_total", "Decisions by what was done and why", ["action", "reason"]
)
FAILURES = Counter(
    "millrace_scaling_actuator_failures_total", "Orders that were not carried out", ["code"]
)
REFUSED = Counter(
    "millrace_scaling_refused_decisions_total",
    "Decisions that were not made: inputs out of their limits, or rules that cannot be followed",
    ["code"],
)
GROUP_LAG = Gauge(
    "millrace_scaling_group_lag_records", "Records that the group of a role has not done", ["group"]
)
GROUP_RATE = Gauge(
    "millrace_scaling_group_records_per_second", "Records that the group of a role does", ["group"]
)
DROPPED = Counter(
    "millrace_scaling_dropped_signals_total",
    "Values that were dropped: negative, not a number, or of a clock that is ahead",
    ["field"],
)
DECISION_SECONDS = Histogram(
    "millrace_scaling_decision_seconds",
    "Time of one decision over all pools",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3),
)
REPLICA_SECONDS = Counter(
    "millrace_scaling_replica_seconds_total",
    "Replicas that were ordered, times the seconds",
    ["pool"],
)
