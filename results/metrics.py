"""Metrics of the results writer, the finaliser and retention; no label names a tenant or a job."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

ITEMS_COMPLETED: Final = Counter("millrace_items_completed_total", "Item rows written", ["outcome"])
ITEMS_COPIED: Final = Counter(
    "millrace_items_copied_total", "Item rows with the result of an identical item"
)
CALLS_BILLED: Final = Counter(
    "millrace_calls_billed_total", "Connection-bound calls added to the usage ledger"
)
DUPLICATES: Final = Counter(
    "millrace_results_duplicates_total", "Outcomes of items that had their row already"
)
IGNORED_AFTER_CLOSE: Final = Counter(
    "millrace_results_ignored_after_close_total", "Outcomes read after the close of their job"
)
UNKNOWN_JOB: Final = Counter(
    "millrace_results_unknown_job_total", "Outcomes of unknown jobs, or of unknown items of a job"
)
UNSTORABLE: Final = Counter(
    "millrace_results_unstorable_total", "Outcomes that Postgres refused; their items failed"
)
DEAD_LETTERS: Final = Counter(
    "millrace_results_dead_letters_total", "Unreadable records of `results`"
)
RETRIES_SCHEDULED: Final = Counter(
    "millrace_retries_scheduled_total", "Failures with a scheduled retry"
)
DEAD_ITEMS: Final = Counter(
    "millrace_dead_items_total", "Items of batches that failed for good, each with a dead letter"
)
PROCESS_ENDS: Final = Counter(
    "millrace_job_process_ends_total", "Processes that items crashed, each once for each job"
)
CRASH_BUDGETS_EXCEEDED: Final = Counter(
    "millrace_crash_budgets_exceeded_total", "Jobs closed because their items crashed too often"
)
DATABASE_RETRIES: Final = Counter(
    "millrace_results_database_retries_total", "Transactions repeated because Postgres failed"
)
TRANSACTION_SECONDS: Final = Histogram(
    "millrace_results_transaction_seconds",
    "Time of one transaction of the results writer",
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
ROWS_PER_TRANSACTION: Final = Histogram(
    "millrace_results_rows_per_transaction",
    "Item rows of one transaction of the results writer",
    buckets=(0, 1, 10, 50, 100, 250, 500, 1000, 2500, 5000, 10_000),
)
JOBS_TERMINAL: Final = Counter(
    "millrace_jobs_terminal_total",
    "Jobs that the finaliser brought to a terminal state",
    ["status"],
)
FINALISE_SECONDS: Final = Histogram(
    "millrace_finalise_seconds",
    "Time from the claim of a settled job to its terminal state",
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800),
)
FILES_REMOVED: Final = Counter(
    "millrace_files_removed_total", "Objects removed of deleted and expired files"
)
UPLOADS_SWEPT: Final = Counter(
    "millrace_uploads_swept_total", "Unfinished uploads removed after a crash"
)
ORPHANS_REMOVED: Final = Counter(
    "millrace_orphans_removed_total", "Objects removed that no file and no job needs"
)
FINALISE_FAILURES: Final = Counter(
    "millrace_finalise_failures_total", "Failed attempts to finalise a job", ["code"]
)

RETENTION_REMOVED: Final = Counter(
    "millrace_retention_removed_total", "Rows and objects removed for good", ["kind"]
)
RETENTION_FAILURES: Final = Counter(
    "millrace_retention_failures_total", "Removals of a batch that Postgres refused"
)
RETENTION_WAITING: Final = Gauge(
    "millrace_retention_waiting_jobs", "Deleted jobs whose rows and objects are not yet removed"
)
