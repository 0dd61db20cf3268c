"""Metrics of the verification and staging of models."""

from prometheus_client import Counter, Gauge

MODEL_REFUSED = Counter(
    "millrace_model_refused_total", "Models that this replica did not load", ["reason"]
)
ADAPTER_REFUSED = Counter(
    "millrace_adapter_refused_total", "Adapters that this replica did not stage", ["reason"]
)
QUARANTINED = Counter(
    "millrace_weight_cache_quarantined_total",
    "Entries of the weight cache that were not as the manifest says",
)
DOWNLOADED_BYTES = Counter(
    "millrace_weight_cache_downloaded_bytes_total", "Bytes of model files that were downloaded"
)
CACHE_BYTES = Gauge(
    "millrace_weight_cache_bytes", "Bytes in the weight cache when a version was last staged"
)
