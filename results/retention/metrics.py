"""What retention and deletion count; no label names a tenant or a job."""

from typing import Final

from prometheus_client import Counter, Gauge

REMOVED: Final = Counter(
    "millrace_retention_removed_total", "Rows and objects removed for good", ["kind"]
)
FAILURES: Final = Counter(
    "millrace_retention_failures_total", "Times that Postgres did not let a batch go"
)
WAITING: Final = Gauge(
    "millrace_retention_waiting_jobs", "Deleted jobs whose rows and objects are not gone yet"
)
