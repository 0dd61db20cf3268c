"""Writes an audit entry when a replica reports on `capacity` that it refused its model version.

A task looks at the newest reports, so the thread that reads `capacity` does no work for it. A
refusing replica repeats its report for longer than the interval, so none is missed.
"""

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

from api.online.admit.admission import PoolStates
from api.runtime.database import Database, DatabaseUnavailableError
from core.clock import Clock
from tenancy.model_refusals import ModelRefusal, record_model_refusal
from topics.records.eligibility import LoadState, is_digest
from topics.records.records import Capacity

INTERVAL_S: Final = 1.0
"""Seconds between two looks at the reports. A report counts for `SILENCE_S_MAX`, 3 s."""

PER_ROUND_MAX: Final = 10
"""Refusals that are recorded in one round; the next round records further ones."""

REMEMBERED_MAX: Final = 1_000
"""Refusals that a process knows to be recorded. Of others it asks Postgres again."""

_POOL: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_REASON: Final = re.compile(r"[a-z][a-z_]{0,63}")  # newer replicas may have further reasons
_LOG = logging.getLogger(__name__)


class RecordedRefusals:
    """The refusals that need no entry for a while; the one used least recently is dropped."""

    def __init__(self, entries_max: int = REMEMBERED_MAX) -> None:
        self._entries_max = entries_max
        self._due_s: OrderedDict[ModelRefusal, float] = OrderedDict()  # monotonic

    def __len__(self) -> int:
        """Return how many refusals are kept."""
        return len(self._due_s)

    def add(self, refusal: ModelRefusal, *, due_s: float) -> None:
        """Remember that a refusal needs no entry before `due_s`."""
        self._due_s[refusal] = due_s
        self._due_s.move_to_end(refusal)
        if len(self._due_s) > self._entries_max:
            self._due_s.popitem(last=False)

    def is_due(self, refusal: ModelRefusal, *, now_s: float) -> bool:
        """Return whether Postgres is to be asked for an entry, and count this as a use."""
        due_s = self._due_s.get(refusal)
        if due_s is None:
            return True
        self._due_s.move_to_end(refusal)
        return now_s >= due_s


def refusals_in(reports: Iterable[Capacity]) -> Iterator[ModelRefusal]:
    """Yield what replicas refused. Texts that are no pool, digest or reason enter no entry."""
    for report in reports:
        for model in report.models:
            if model.state != LoadState.REFUSED:
                continue
            if _POOL.fullmatch(report.pool) and _REASON.fullmatch(model.reason):
                version = model.version if is_digest(model.version) else None
                yield ModelRefusal(report.pool, version, model.reason)


class ModelRefusalRecorder:
    """Records refused model versions in the audit log of the installation.

    Each pool, version and reason gets one entry within `REPEATED_AFTER_S`, from whichever API
    process is first.
    """

    def __init__(self, database: Database, pools: PoolStates, clock: Clock) -> None:
        """Create the recorder; `run` starts it."""
        self._database, self._pools, self._clock = database, pools, clock
        self._recorded = RecordedRefusals()
        self._has_failed = False

    async def run(self) -> None:
        """Record refusals until cancelled."""
        while True:
            await self.run_once()
            await asyncio.sleep(INTERVAL_S)

    async def run_once(self) -> None:
        """Record refusals that are reported now. While Postgres is unavailable they stay due."""
        now_s = self._clock.monotonic_s()
        reported = dict.fromkeys(refusals_in(self._pools.reports(now_s=now_s)))
        due = [one for one in reported if self._recorded.is_due(one, now_s=now_s)]
        for refusal in due[:PER_ROUND_MAX]:
            try:
                rest_s = await self._database.run_across_tenants(record_model_refusal, refusal)
            except DatabaseUnavailableError:
                if not self._has_failed:
                    _LOG.warning("refused models were not recorded in the audit log yet")
                self._has_failed = True
                return
            self._has_failed = False
            self._recorded.add(refusal, due_s=self._clock.monotonic_s() + rest_s)
