"""What results on this replica show about the output of tenants, for the estimates of intake."""

from dataclasses import dataclass, field
from typing import Final

from core.bodies.output_estimator import OutputEstimator
from core.bodies.token_estimates import requested_tokens
from gpu_consumers.engines.engine import EngineAnswer
from topics.records.records import JobRef, OutputMean

REPEAT_S: Final = 2.0
"""Time between two records that hold the means. Capacity records between them do not."""

MEANS_MAX: Final = 100
"""Means in one record, the newest first: 5 KiB."""


@dataclass(slots=True)
class OutputSamples:
    """Learns from some of the results of one replica and class; times are monotonic seconds."""

    _estimator: OutputEstimator = field(default_factory=OutputEstimator)
    _published_s: float = float("-inf")
    _has_changed: bool = False

    def add(self, job: JobRef, body: bytes, answer: EngineAnswer) -> None:
        """Learn from the answer to a body. One for each iteration of the event loop is enough."""
        if answer.is_error or not answer.output_tokens:
            return
        requested = requested_tokens(job.endpoint, body)
        source = (job.tenant_id, job.pool, job.endpoint)
        self._estimator.add_result(*source, requested, answer.output_tokens)
        self._has_changed = True

    def means_to_publish(self, *, now_s: float) -> list[OutputMean] | None:
        """Return the means that the next capacity record holds; None if it holds none."""
        if not self._has_changed or now_s - self._published_s < REPEAT_S:
            return None
        self._published_s, self._has_changed = now_s, False
        return [
            OutputMean(endpoint, tenant_id, tokens)
            for (tenant_id, _, endpoint), tokens in self._estimator.recent(MEANS_MAX)
        ]
