"""What an API process tells Prometheus; no tenant and no job is ever a label."""

from prometheus_client import Counter, Gauge, Histogram

REQUESTS = Counter(
    "millrace_api_requests_total", "Answered requests", ["route", "method", "status"]
)
REQUEST_SECONDS = Histogram(
    "millrace_api_request_seconds",
    "From a request's head to the end of its answer",
    ["route"],
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
)
IN_FLIGHT = Gauge("millrace_api_requests_in_flight", "Requests being served")
FOLLOWERS = Gauge("millrace_api_followers", "Streams of results that are open")
REPLAYS_WAITING = Gauge(
    "millrace_api_replays_waiting", "Repeated calls that wait for the row of their answer"
)
SHED = Counter("millrace_api_shed_total", "Requests refused because of load", ["reason"])
CRASHES = Counter("millrace_api_crashes_total", "Requests that ended in a bug of ours")
UPLOADED_BYTES = Counter("millrace_api_uploaded_bytes_total", "Bytes of files received")
DOWNLOADED_BYTES = Counter("millrace_api_downloaded_bytes_total", "Bytes of files handed out")
JOBS_CREATED = Counter("millrace_jobs_created_total", "Jobs accepted", ["endpoint"])
REPLAYED = Counter(
    "millrace_api_replayed_total", "Answers that were given again to an equal POST", ["scope"]
)
