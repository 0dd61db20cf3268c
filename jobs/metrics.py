"""Metrics of the intake role and its outbox relay."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

JOBS_REFUSED: Final = Counter("millrace_jobs_refused_total", "Jobs whose input file was not valid.")
JOBS_EXPIRED: Final = Counter(
    "millrace_jobs_expired_total", "Jobs closed because their completion window was over."
)
FILES_ORDERED: Final = Counter(
    "millrace_ordered_files_total", "Input files whose items are emitted by shared prefixes."
)
ORDER_SAVED_TOKENS: Final = Counter(
    "millrace_order_saved_tokens_total",
    "Prompt tokens that these orders are expected to save, beyond what the files' own would.",
)
VALIDATION_SECONDS: Final = Histogram(
    "millrace_intake_validation_seconds",
    "Time to validate one input file.",
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300),
)
ITEMS_EXPANDED: Final = Counter(
    "millrace_intake_items_expanded_total", "Items put on the log; after a crash some again."
)
OUTSTANDING_ITEMS: Final = Gauge(
    "millrace_intake_outstanding_items",
    "Items on their way, over all open jobs; the same in every replica.",
)
LOAD_MISMATCHES: Final = Counter(
    "millrace_intake_load_mismatches_total",
    "Reconciliations that found other loads in memory than in the rows of jobs.",
)
JOBS_URGENT: Final = Gauge(
    "millrace_intake_urgent_jobs",
    "Jobs that are served in the order of their deadlines, which are at risk.",
)
JOBS_RELEGATED: Final = Gauge(
    "millrace_intake_relegated_jobs",
    "Jobs that cannot end in time with the others of their tenant.",
)
JOBS_HELD: Final = Gauge("millrace_intake_jobs_held", "Jobs whose lease this process holds.")
TENANT_QUARANTINES: Final = Gauge(
    "millrace_tenant_quarantines",
    "Tenants whose bulk jobs wait on a pool, after one exceeded its crash budget; the same in "
    "every intake.",
)
LEASES_LOST: Final = Counter(
    "millrace_lease_lost_total", "Leases that another process took over from this one."
)
ITEMS_REPAIRED: Final = Counter(
    "millrace_repaired_items_total", "Items of stalled jobs emitted again."
)
ITEMS_RESUMED: Final = Counter(
    "millrace_resumed_items_total", "Items of resumed jobs emitted again, as their pause made void."
)
FILES_APPENDED: Final = Counter(
    "millrace_appended_files_total", "Verdicts on files that were appended to jobs.", ["verdict"]
)
RETRIES_EMITTED: Final = Counter(
    "millrace_retries_emitted_total", "Items put on the log for another attempt."
)
RETRIES_DELAYED: Final = Counter(
    "millrace_retries_delayed_total", "Looks at a pool whose retry budget was less than was due."
)
JOB_FAILURES: Final = Counter(
    "millrace_intake_job_failures_total", "Jobs put aside after an error, to be tried again."
)
OUTBOX_RELAYED: Final = Counter(
    "millrace_outbox_relayed_total", "Records moved from the outbox to the log."
)
OUTBOX_PUT_ASIDE: Final = Counter(
    "millrace_outbox_put_aside_total", "Records that are too large for the log."
)
OUTBOX_PENDING: Final = Gauge("millrace_outbox_pending", "Records waiting in the outbox.")
OUTBOX_OLDEST_AGE: Final = Gauge(
    "millrace_outbox_oldest_age_seconds", "Age of the oldest record in the outbox."
)
