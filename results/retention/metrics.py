"""Metrics of retention and deletion; no label names a tenant or a job."""

from typing import Final

from prometheus_client import Counter, Gauge

REMOVED: Final = Counter(
    "millrace_retention_removed_total", "Rows and objects removed for good", ["kind"]
)
FAILURES: Final = Counter(
    "millrace_retention_failures_total", "Removals of a batch that Postgres refused"
)
WAITING: Final = Gauge(
    "millrace_retention_waiting_jobs", "Deleted jobs whose rows and objects are not yet removed"
)
