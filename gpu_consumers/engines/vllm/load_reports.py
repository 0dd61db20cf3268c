"""Reports of vLLM's load, from its own statistics of each step."""

import math
import time
from collections.abc import Callable
from typing import Any, Final

from vllm.v1.metrics.loggers import StatLoggerBase

from gpu_consumers import metrics
from gpu_consumers.engines.vllm.bulk_window import EngineLoad

REPORT_S: Final = 0.1
"""Time between two reports, each of the steps since the last one."""

_PERCENTILE: Final = 0.95
_LATENCIES_MAX: Final = 10_000


class LoadReports(StatLoggerBase):  # type: ignore[misc]  # vLLM has no types
    """Summarises vLLM's statistics; vLLM calls `record` on the event loop after each step."""

    def __init__(self, on_load: Callable[[EngineLoad], None]) -> None:
        """`on_load` is called on the event loop."""
        self._on_load = on_load
        self._reported_s = -math.inf
        self._preempted = 0
        self._token_s: list[float] = []

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Add the statistics of a step."""
        if iteration_stats is not None:
            self._preempted += iteration_stats.num_preempted_reqs
            if len(self._token_s) < _LATENCIES_MAX:
                self._token_s += iteration_stats.inter_token_latencies_iter
        if scheduler_stats is None:
            return
        metrics.ENGINE_RUNNING.set(scheduler_stats.num_running_reqs)
        metrics.ENGINE_WAITING.set(scheduler_stats.num_waiting_reqs)
        metrics.ENGINE_KV_USAGE.set(scheduler_stats.kv_cache_usage)
        now_s = time.monotonic()
        if now_s - self._reported_s < REPORT_S:
            return
        load = EngineLoad(
            running=scheduler_stats.num_running_reqs,
            waiting=scheduler_stats.num_waiting_reqs,
            kv_usage=scheduler_stats.kv_cache_usage,
            preempted=self._preempted,
            token_s=percentile(self._token_s),
        )
        self._reported_s, self._preempted, self._token_s = now_s, 0, []
        metrics.ENGINE_PREEMPTIONS.inc(load.preempted)
        if load.token_s is not None:
            metrics.ENGINE_TOKEN_SECONDS.set(load.token_s)
        self._on_load(load)

    def log_engine_initialized(self) -> None:
        """Do nothing: vLLM logs its own configuration."""


def percentile(values: list[float]) -> float | None:
    """Return the 95th percentile, None without values."""
    if not values:
        return None
    return sorted(values)[min(len(values) - 1, int(_PERCENTILE * len(values)))]
