"""Prometheus metrics of the batcher. No label holds a tenant or a job."""

from prometheus_client import Counter, Gauge, Histogram

BATCH_ITEMS = Histogram(
    "millrace_batch_items", "Items in a dispatched batch", buckets=(1, 2, 5, 10, 20, 50, 75, 100)
)
BATCH_CLOSE = Counter("millrace_batch_close_total", "Batches by why they closed", ["reason"])
WAIT_SECONDS = Histogram(
    "millrace_batcher_wait_seconds",
    "From a record's arrival to the dispatch of its items",
    buckets=(0.0005, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100),
)
BUFFERED_ITEMS = Gauge("millrace_batcher_held_items", "Items that wait for credit", ["pool"])
UNSERVED_ITEMS = Gauge(
    "millrace_batcher_unserved_items",
    "Items that wait because no replica of their pool has their model version warm",
    ["pool"],
)
BUFFERED_BYTES = Gauge("millrace_batcher_held_bytes", "Bytes of the items that wait")
DEFERRALS = Counter(
    "millrace_batcher_deferrals_total",
    "Records of which only the offset was kept: their tenant had its quota of the buffer",
)
DEFERRED_RECORDS = Gauge("millrace_batcher_deferred_records", "Deferred records to read again")
REQUEUED_ITEMS = Counter(
    "millrace_batcher_hand_back_total",
    "Items put back to the tail because they pinned an offset or crowded others out",
)
TAKEN_BACK_ITEMS = Counter(
    "millrace_batcher_taken_back_total",
    "Items queued again because the partition of their batch became unavailable",
)
ITEMS_DROPPED = Counter(
    "millrace_batcher_dropped_total", "Items not dispatched because they were over", ["reason"]
)
UNREADABLE = Counter("millrace_batcher_unreadable_total", "Records that could not be read")
REBALANCES = Counter("millrace_faust_rebalances_total", "Times that Faust lost its partitions")
RECORDS = Counter("millrace_faust_events_total", "Records that Faust delivered")
OPEN_EVENTS = Gauge("millrace_faust_open_events", "Records delivered and not acknowledged")
COMMIT_AGE_SECONDS = Gauge(
    "millrace_faust_commit_age_seconds", "Time since offsets moved though records were acknowledged"
)
