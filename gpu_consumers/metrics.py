"""What a replica tells Prometheus; no tenant and no job is ever a label."""

from prometheus_client import Counter, Gauge, Histogram, Info

ITEMS_EXECUTED = Counter(
    "millrace_items_executed_total", "Items that an engine answered", ["outcome"]
)
ITEMS_SKIPPED = Counter(
    "millrace_items_skipped_total",
    "Items that were not executed: their job was closed, paused (void) or expired",
    ["reason"],
)
ITEMS_HANDED_BACK = Counter(
    "millrace_items_handed_back_total", "Items put back because the pool was away or draining"
)
BATCH_ITEMS = Histogram(
    "millrace_execution_batch_items",
    "Items in an executed batch",
    buckets=(1, 2, 5, 10, 20, 50, 75, 100, 200),
)
EXECUTION_SECONDS = Histogram(
    "millrace_item_compute_seconds",
    "From a batch's arrival at the replica to its last answer",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
)
BATCHES_ISOLATED = Counter(
    "millrace_batches_isolated_total", "Batches that ran apart: in tenths, or alone", ["reason"]
)
ITEMS_CHARGED = Counter(
    "millrace_items_charged_total",
    "Items that failed because they ended their process, or fit no memory, alone",
    ["reason"],
)
IN_FLIGHT = Gauge("millrace_replica_items_in_flight", "Items taken over and not ended")
ITEMS_PER_SECOND = Gauge("millrace_replica_items_per_second", "Measured rate of this replica")
POOL_AVAILABLE = Gauge("millrace_pool_available", "1 while the pool answers, 0 while it is away")
UPSTREAM_REFUSALS = Counter(
    "millrace_upstream_refusals_total",
    "Items and calls that a busy upstream did not take, each try",
)
UPSTREAM_PLACES = Gauge(
    "millrace_upstream_places", "Bulk items that the upstream of openai_http is asked for at once"
)
ENGINE = Info("millrace_engine", "The engine that this replica runs")
CALLS_RUNNING = Gauge("millrace_calls_running", "Online calls in the hands of this replica")
FIRST_PIECE_SECONDS = Histogram(
    "millrace_call_first_piece_seconds",
    "From a stream's arrival at the replica to its first piece",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
)
CALLS_ABORTED = Counter(
    "millrace_calls_aborted_total",
    "Online calls that ended without the engine's answer",
    ["reason"],
)
CALLS_INTERRUPTED = Counter(
    "millrace_calls_interrupted_total", "Streams that broke off after their first piece"
)
