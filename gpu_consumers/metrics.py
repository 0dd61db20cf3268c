"""Prometheus metrics of a replica; no label names a tenant or a job."""

from prometheus_client import Counter, Gauge, Histogram, Info

ITEMS_EXECUTED = Counter(
    "millrace_items_executed_total", "Items answered by the engine", ["outcome"]
)
ITEMS_SKIPPED = Counter(
    "millrace_items_skipped_total",
    "Items dropped before execution: their job was closed, paused (void) or expired",
    ["reason"],
)
ITEMS_HANDED_BACK = Counter(
    "millrace_items_handed_back_total", "Items requeued: pool unavailable, or replica draining"
)
OTHER_VERSION_ITEMS = Counter(
    "millrace_items_other_version_total",
    "Items and calls requeued because their model version is not the one of this replica",
)
BATCH_ITEMS = Histogram(
    "millrace_execution_batch_items",
    "Items in an executed batch",
    buckets=(1, 2, 5, 10, 20, 50, 75, 100, 200),
)
EXECUTION_SECONDS = Histogram(
    "millrace_item_compute_seconds",
    "From the arrival of a batch at the replica to its last answer",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
)
BATCHES_ISOLATED = Counter(
    "millrace_batches_isolated_total", "Batches that ran in quarantine", ["reason"]
)
ITEMS_CHARGED = Counter(
    "millrace_items_charged_total",
    "Items failed because they crashed the process, or exceeded the memory, when they ran alone",
    ["reason"],
)
HOST_UNEXPLAINED_ENDS = Gauge(
    "millrace_host_unexplained_ends",
    "Ends of this replica's processes on its host that no single item explains",
)
HOST_REST_SECONDS = Gauge(
    "millrace_host_rest_seconds", "How long this replica rests now, because its host is failing"
)
IN_FLIGHT = Gauge("millrace_replica_items_in_flight", "Items that have arrived and not ended")
ITEMS_PER_SECOND = Gauge("millrace_replica_items_per_second", "Measured rate of this replica")
POOL_AVAILABLE = Gauge("millrace_pool_available", "1 while the pool is available, else 0")
UPSTREAM_REFUSALS = Counter(
    "millrace_upstream_refusals_total",
    "Items and calls refused by a busy upstream; each try counts",
)
UPSTREAM_PLACES = Gauge(
    "millrace_upstream_places", "Bulk items that may be at the upstream of openai_http at once"
)
ENGINE_BULK_WINDOW = Gauge(
    "millrace_engine_bulk_window", "Bulk items that vLLM gets at once, by its load"
)
ENGINE_RUNNING = Gauge("millrace_engine_running", "Sequences in the last step of vLLM")
ENGINE_WAITING = Gauge("millrace_engine_waiting", "Sequences that wait inside vLLM")
ENGINE_KV_USAGE = Gauge(
    "millrace_engine_kv_usage", "Share of vLLM's KV cache that running sequences use, 0 to 1"
)
ENGINE_PREEMPTIONS = Counter(
    "millrace_engine_preemptions_total",
    "Sequences that lost their KV cache in vLLM and were computed again",
)
ENGINE_TOKEN_SECONDS = Gauge(
    "millrace_engine_token_seconds",
    "95th percentile of the time between two tokens of a sequence in vLLM",
)
ITEMS_PREEMPTED = Counter(
    "millrace_items_preempted_total",
    "Executions of bulk items that were aborted for a waiting online call, and run again",
)
ASLEEP = Gauge("millrace_replica_asleep", "1 while this replica is in standby, 0 otherwise")
WAKES = Counter("millrace_replica_wakes_total", "Times that this replica left standby", ["reason"])
SPOT_NOTICES = Counter(
    "millrace_spot_notices_total", "Notices that the GPU of this replica is taken away"
)
ENGINE = Info("millrace_engine", "The engine that this replica runs")
CALLS_RUNNING = Gauge("millrace_calls_running", "Online calls in flight on this replica")
FIRST_PIECE_SECONDS = Histogram(
    "millrace_call_first_piece_seconds",
    "From the arrival of a stream at the replica to its first piece",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
)
CALLS_ABORTED = Counter(
    "millrace_calls_aborted_total",
    "Online calls that ended without an answer of the engine",
    ["reason"],
)
REPLIES_DROPPED = Counter(
    "millrace_replies_dropped_total",
    "Parts of replies that were dropped: the partition of their caller was unavailable",
)
CALLS_INTERRUPTED = Counter(
    "millrace_calls_interrupted_total", "Streams that ended with an error after their first piece"
)
