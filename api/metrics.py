"""Prometheus metrics of an API process. Tenants and jobs are never labels."""

from prometheus_client import Counter, Gauge, Histogram

REQUESTS = Counter(
    "millrace_api_requests_total", "Requests answered", ["route", "method", "status"]
)
REQUEST_SECONDS = Histogram(
    "millrace_api_request_seconds",
    "Seconds from a request's head to the end of its response",
    ["route"],
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
)
IN_FLIGHT = Gauge("millrace_api_requests_in_flight", "Requests in flight")
RESULT_STREAMS = Gauge("millrace_api_followers", "Open streams of results")
REPLAYS_WAITING = Gauge(
    "millrace_api_replays_waiting", "Retried calls that wait for the row of their answer"
)
SHED = Counter("millrace_api_shed_total", "Requests refused because of load", ["reason"])
OVERLOAD_REFUSED = Counter(
    "millrace_overload_refused_total",
    "Batches and calls refused because their pool is overloaded",
    ["class"],
)
BULK_BACKLOG_SECONDS = Gauge(
    "millrace_api_bulk_backlog_seconds",
    "Seconds of work of the open batches of a pool, when a batch was last created",
    ["pool"],
)
AUTHENTICATION_FAILURES = Counter(
    "millrace_api_authentication_failures_total", "Requests without a valid key", ["reason"]
)
CRASHES = Counter("millrace_api_crashes_total", "Requests that crashed")
UPLOADED_BYTES = Counter("millrace_api_uploaded_bytes_total", "Bytes of files received")
DOWNLOADED_BYTES = Counter("millrace_api_downloaded_bytes_total", "Bytes of files sent")
JOBS_CREATED = Counter("millrace_jobs_created_total", "Jobs created", ["endpoint"])
REPLAYED = Counter("millrace_api_replayed_total", "Answers replayed to an equal POST", ["scope"])
