"""Which partitions of `results` are unavailable, so that their jobs take no part in scheduling.

Nothing of such a job ends: its outstanding items would fill the windows of its tenant and pool, and
after the stall limit all of them would be emitted and executed again.
"""

import logging
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from jobs.expansion.load_sums import JobLoad
from topics.clients.admin import TopicAdmin
from topics.errors import KafkaUnavailableError
from topics.records.catalogue import RESULTS
from topics.records.partitioner import job_partition

_LOG: Final = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 2.0
"""Time between two requests for the state of the partitions."""


class ResultPartitions:
    """The newest known state. Safe for threads."""

    def __init__(self) -> None:
        self._unavailable: frozenset[int] = frozenset()

    @property
    def unavailable(self) -> frozenset[int]:
        """The unavailable partitions."""
        return self._unavailable

    def update(self, admin: TopicAdmin) -> None:
        """Ask the broker; while it does not answer, the state stays as it was."""
        try:
            unavailable = admin.unavailable_partitions(RESULTS)
        except KafkaUnavailableError:
            return
        if unavailable != self._unavailable:
            _LOG.warning(
                "other partitions of results are unavailable", extra={"now": sorted(unavailable)}
            )
            self._unavailable = unavailable

    def available(self, loads: Sequence[JobLoad]) -> list[JobLoad]:
        """Return the loads of the jobs whose partition is available."""
        unavailable = self._unavailable
        if not unavailable:
            return list(loads)
        return [load for load in loads if results_partition(load.job_id) not in unavailable]


def results_partition(job_id: UUID) -> int:
    """Return the partition of `results` that gets the outcomes of a job."""
    return job_partition(job_id, RESULTS.partition_count)
