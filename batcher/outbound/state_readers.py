"""The readers of what replicas and other batchers publish, each a thread of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from batcher.outbound.capacity_reader import capacity_reader, grant_reader
from batcher.outbound.record_reader import RecordReader
from topics.records.catalogue import SERVICE, USAGE
from topics.records.records import Capacity, ReplicaGrants, ServiceReport, UsageReport
from topics.settings import KafkaSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class StateHandlers:
    """What the batcher does with records that were read together; called on the event loop."""

    on_capacity: Callable[[list[Capacity]], None]
    on_grants: Callable[[list[ReplicaGrants]], None]
    on_service: Callable[[list[ServiceReport]], None]
    on_usage: Callable[[list[UsageReport]], None]
    on_failure: Callable[[BaseException], None]


class StateReaders:
    """Reads capacity, grants, and the reports of service and usage."""

    def __init__(
        self,
        settings: KafkaSettings,
        job_class: str,
        handlers: StateHandlers,
        *,
        client_id: str,
        call_from_thread: Callable[[Callable[[Any], None], object], None],
    ) -> None:
        """`call_from_thread` calls a handler on the event loop."""
        on_failure = partial(call_from_thread, handlers.on_failure)
        self._capacity = capacity_reader(
            settings,
            job_class,
            client_id=client_id,
            on_capacity=partial(call_from_thread, handlers.on_capacity),
            on_failure=on_failure,
        )
        self._grants = grant_reader(
            settings,
            job_class,
            client_id=client_id,
            on_grants=partial(call_from_thread, handlers.on_grants),
            on_failure=on_failure,
        )
        self._service = RecordReader(
            settings,
            SERVICE,
            ServiceReport,
            client_id=client_id,
            on_records=partial(call_from_thread, handlers.on_service),
            on_failure=on_failure,
        )
        self._usage = RecordReader(
            settings,
            USAGE,
            UsageReport,
            client_id=client_id,
            on_records=partial(call_from_thread, handlers.on_usage),
            on_failure=on_failure,
        )

    def start(self, timeout_s: float) -> None:
        """Read from the present ends; blocks until those of capacity and grants are known.

        Raises KafkaUnavailableError.
        """
        self._capacity.start_at_end(timeout_s)
        self._grants.start_at_end(timeout_s)
        self._service.start()
        self._usage.start()

    def stop(self) -> None:
        """Stop reading."""
        for reader in (self._capacity, self._grants, self._service, self._usage):
            reader.stop()
