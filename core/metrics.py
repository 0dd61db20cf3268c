"""Metrics of every role."""

from prometheus_client import Counter, Gauge

ROLE_READY = Gauge("millrace_role_ready", "1 once this role does its work, 0 while it starts")
WRITES_REFUSED = Counter(
    "millrace_lease_writes_refused_total",
    "Writes of this process that were refused, as another held their lease.",
    ["role"],
)
