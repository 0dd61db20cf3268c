"""Records the processes of this host on `attempts`, so that each knows how those before it ended.

A process that ended by itself is no crash: it stopped, or its disk, its broker or a delivery
failed. Its last record says so. A predecessor that left none, and does not run any more, crashed.
"""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from core.clock import Clock
from core.errors import SchemaTooNewError
from gpu_consumers import metrics
from gpu_consumers.quarantine.attempt_log import read_attempts
from gpu_consumers.quarantine.host_health import HostHealth
from gpu_consumers.quarantine.host_history import ENDS_KEPT, assess_host, ends_after
from topics.clients.producer import RecordProducer
from topics.errors import DeliveryError, KafkaUnavailableError
from topics.records.attempts import BatchAttempt, ProcessEnd, ReplicaProcess
from topics.records.catalogue import ATTEMPTS
from topics.records.codec import encode, kind_headers
from topics.settings import KafkaSettings

_LOG = logging.getLogger(__name__)
_WRITE_S_MAX: Final = 10.0
_PARTITION: Final = 0
_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO}


def is_host_fault(failure: BaseException) -> bool:
    """Return whether a failure that ends the process cannot be the fault of an item."""
    if isinstance(failure, OSError):
        return failure.errno in _FULL
    return isinstance(failure, DeliveryError | KafkaUnavailableError | SchemaTooNewError)


@dataclass(slots=True, kw_only=True, eq=False)
class ProcessLog:
    """The record of this process. Used on the event loop."""

    kafka: KafkaSettings
    pool: str
    host_id: str
    clock: Clock
    host: HostHealth = field(init=False)
    _process: ReplicaProcess = field(init=False)
    _ended: list[UUID] = field(default_factory=list)  # predecessors whose ends are known here

    async def read_predecessors(self) -> None:
        """Read how the processes before this one ended, and set `host`."""
        attempts: Mapping[UUID, BatchAttempt] = {}
        try:
            attempts = await asyncio.to_thread(
                read_attempts, self.kafka, client_id=f"{self.pool}-process"
            )
        except KafkaUnavailableError:
            _LOG.warning("the ends of earlier processes are not known")
        now_s = self.clock.wall_s()
        process = ReplicaProcess(socket.gethostname(), os.getpid(), self.pool, now_s)
        ends: list[ProcessEnd] = []
        predecessors: list[UUID] = []
        for ended in _ended_predecessors(attempts.values(), self.host_id, process):
            assert ended.process is not None
            own = [a for a in attempts.values() if a.process_id == ended.batch_id]
            ends += ends_after(ended.process, own, now_s=now_s)
            predecessors += [*ended.process.predecessors, ended.batch_id]
            self._ended.append(ended.batch_id)
        self.host = HostHealth(host_id=self.host_id, verdict=assess_host(ends))
        self._process = replace(process, ends=ends, predecessors=predecessors[-ENDS_KEPT:])

    async def rest(self, stop: threading.Event) -> None:
        """Accept no work for a while if the host is failing; return early at `stop`."""
        verdict = self.host.verdict
        metrics.HOST_UNEXPLAINED_ENDS.set(verdict.unexplained_ends)
        if not verdict.is_failing:
            return
        facts = {"host": self.host_id, "ends": verdict.unexplained_ends, "rest_s": verdict.rest_s}
        _LOG.error("this host ends its processes whatever they run", extra=facts)
        metrics.HOST_REST_SECONDS.set(verdict.rest_s)
        await asyncio.to_thread(stop.wait, verdict.rest_s)
        metrics.HOST_REST_SECONDS.set(0)

    @contextlib.asynccontextmanager
    async def serving(self, concurrency: int) -> AsyncIterator[None]:
        """Record that the process is ready, that it has served, and its end if no item caused it.

        The attempts that are recorded as running at such an end did not crash it.
        """
        self.host.start_serving(concurrency)
        service = asyncio.create_task(self._record_service())
        try:
            yield
        except BaseException as failure:  # also a cancellation; each ends the process
            if is_host_fault(failure):
                await self._record_end(service)
            raise
        else:
            await self._record_end(service)
        finally:
            service.cancel()

    async def _record_end(self, service: asyncio.Task[None]) -> None:
        service.cancel()
        await asyncio.wait([service])
        released = [replace(attempt, is_running=False) for attempt in self.host.running.values()]
        await self._write([*released, self._record(replace(self._process, is_stopped=True))])

    async def _record_service(self) -> None:
        loop = asyncio.get_running_loop()
        proven_at_s = loop.time() + self.host.verdict.long_life_s
        await self._update(deleted=self._ended, ready_s=self.clock.wall_s())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(proven_at_s):
                await self.host.has_served.wait()
                await self._update(has_served=True)
        await asyncio.sleep(max(0.0, proven_at_s - loop.time()))
        await self._update(has_proven=True)
        metrics.HOST_UNEXPLAINED_ENDS.set(0)

    async def _update(self, deleted: Iterable[UUID] = (), **fields: object) -> None:
        self._process = replace(self._process, **fields)
        await self._write([self._record(self._process)], deleted)

    def _record(self, process: ReplicaProcess) -> BatchAttempt:
        process_id = self.host.process_id
        return BatchAttempt(
            process_id, 1, [], is_running=False, host_id=self.host_id, process=process
        )

    async def _write(self, attempts: Iterable[BatchAttempt], deleted: Iterable[UUID] = ()) -> None:
        records = {attempt.batch_id: encode(attempt) for attempt in attempts}
        values = records | dict.fromkeys(deleted)
        try:
            await asyncio.to_thread(_send, self.kafka, values)
        except DeliveryError:
            _LOG.warning("the record of this process was not written")


def _send(kafka: KafkaSettings, values: Mapping[UUID, bytes | None]) -> None:
    """Write records with a producer of their own: that of the replica may have failed."""
    producer = RecordProducer(kafka, client_id="process", linger_ms=0)
    try:
        for key, value in values.items():
            producer.send(
                ATTEMPTS.name,
                value,
                partition=_PARTITION,
                key=key.bytes,
                headers=kind_headers(BatchAttempt),
            )
        producer.flush(_WRITE_S_MAX)
    finally:
        producer.close(0)


def _ended_predecessors(
    attempts: Iterable[BatchAttempt], host_id: str, process: ReplicaProcess
) -> list[BatchAttempt]:
    """Return the records of this host's processes that do not run any more, oldest first."""
    ended = [
        attempt
        for attempt in attempts
        if (known := attempt.process) is not None
        and attempt.host_id == host_id
        and (known.node, known.pool) == (process.node, process.pool)
        and (known.is_stopped or known.pid == process.pid or not _is_alive(known.pid))
    ]
    return sorted(ended, key=lambda attempt: attempt.process.started_s if attempt.process else 0)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
