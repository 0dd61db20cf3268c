"""Sending of a call to the batcher: one record, and an object for a body too large for it."""

import asyncio
import logging
import threading
from collections import defaultdict
from collections.abc import Callable
from itertools import count
from typing import Final
from uuid import UUID

import msgspec

from api.http.errors import as_api_error
from api.online.await_reply.open_calls import OpenCall
from api.online.call_errors import log_unavailable, stream_interrupted
from api.online.calls import PlannedCall
from api.runtime.object_threads import ObjectDeletions, run_in_store_thread
from core.bodies.token_estimates import TokenEstimate
from core.clock import Clock
from core.errors import MillraceError
from core.ids import REQUEST, public_id
from core.object_names import REQUESTS
from storage.crypto.body_ciphers import BodyCipher, BodyDirection, CipherContext
from storage.objects.errors import ObjectNotFoundError
from storage.objects.object_store import ObjectStore, read_object, write_object
from topics.clients.offset_tracker import Partition
from topics.clients.producer import OnDelivery, PartitionSender
from topics.errors import DeliveryError
from topics.records.catalogue import CALLERS, REQUESTS_INTERACTIVE
from topics.records.chunks import partitions_own_first, send_chunk
from topics.records.partitioner import shuffle_shard
from topics.records.records import Chunk, Item, JobRef

_LOG = logging.getLogger(__name__)

BODY_BYTES_MAX: Final = 512 * 1024
"""A larger body is sent by reference."""


class LargeBodies:
    """Stores request bodies, and fetches reply bodies."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects, self._deletions = objects, ObjectDeletions(objects)

    async def store_request(self, call: PlannedCall, cipher: BodyCipher | None) -> tuple[str, int]:
        """Store the body of a call, encrypted if there is a `cipher`.

        Return the key and the length of the stored line. Raises the errors of the object store.
        """
        key = f"{REQUESTS}{call.request_id.hex}"
        if cipher is None:
            line = _input_line(call.request_id, call.parsed.endpoint, call.parsed.body)
        else:
            line = cipher.encrypt(
                call.parsed.body, CipherContext(call.request_id, BodyDirection.IN, 0)
            )
        await run_in_store_thread(write_object, self._objects, key, line)
        return key, len(line)

    async def fetch(self, key: str) -> bytes:
        """Return the body of a reply.

        Raises ApiError: 502 when the object is missing, 503 when the store is unavailable.
        """
        try:
            return await run_in_store_thread(read_object, self._objects, key)
        except ObjectNotFoundError:
            raise stream_interrupted() from None
        except MillraceError as failure:
            _LOG.warning("an answer was not fetched", extra={"code": failure.code})
            raise (as_api_error(failure) or stream_interrupted()) from None

    def delete_later(self, key: str) -> None:
        """Delete an object in the background. The orphan sweep deletes it if that fails."""
        self._deletions.start(key)


def _input_line(request_id: UUID, endpoint: str, body: bytes) -> bytes:
    """Return a call as the only line of an input file. Its body stays the same, byte for byte."""
    line = {
        "custom_id": public_id(REQUEST, request_id),
        "method": "POST",
        "url": endpoint,
        "body": msgspec.Raw(body),
    }
    return msgspec.json.encode(line)


_JOB_CLASS = "interactive"

CALLERS_PLACE: Final = (CALLERS.name, 0)
"""The partition of the heartbeats of every API process."""

_BURST_S: Final = 0.5
"""How long a partition may have much unacknowledged, as after a burst of large calls."""


def call_item(job: JobRef, body: bytes, tokens: TokenEstimate, line_bytes: int) -> Item:
    """Return the only item of a call; `line_bytes` is the length of its stored line."""
    by_reference = len(body) > BODY_BYTES_MAX
    return Item(
        index=0,
        custom_id=public_id(REQUEST, job.job_id),
        body=b"" if by_reference else body,
        token_count=tokens.expected_total,
        length=line_bytes if by_reference else 0,
        output_token_count=tokens.output_expected,
    )


class LogHealth:
    """Tracks the records that are not acknowledged yet, by partition. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._numbers = count()
        # Times of sending by number, in the order of sending.
        self._pending: defaultdict[Partition, dict[int, float]] = defaultdict(dict)

    def track(self, then: Callable[[BaseException | None], object], place: Partition) -> OnDelivery:
        """Track a record that is sent now. Pass the result to the producer as `on_delivery`."""
        number = next(self._numbers)
        with self._lock:
            self._pending[place][number] = self._clock.monotonic_s()

        def on_delivery(failure: BaseException | None) -> None:
            with self._lock:
                self._pending[place].pop(number, None)
            then(failure)

        return on_delivery

    def oldest_pending_s(self, place: Partition) -> float:
        """Return the age of a partition's oldest unacknowledged record; 0 when there is none."""
        with self._lock:
            sent_s = next(iter(self._pending[place].values()), None)
        return 0.0 if sent_s is None else self._clock.monotonic_s() - sent_s


class CallSender:
    """Sends calls, around partitions that do not acknowledge records.

    A call is refused when neither partition of its (pool, tenant) acknowledges, or the heartbeats
    of this process are not acknowledged: others would consider it dead.
    """

    def __init__(self, sender: PartitionSender, health: LogHealth, *, patience_s: float) -> None:
        """A record unacknowledged for longer than `patience_s` makes its partition unavailable."""
        self._sender, self._health, self._patience_s = sender, health, patience_s
        # unacknowledged; the producer's thread removes
        self._waiting: dict[OpenCall, Partition] = {}

    def check_log_available(self, job: JobRef) -> None:
        """Raise ApiError (503) while the partitions of `job` or the heartbeats do not answer."""
        is_silent = self._health.oldest_pending_s(CALLERS_PLACE) > self._patience_s
        shard = shuffle_shard(job.pool, job.tenant_id, REQUESTS_INTERACTIVE.partition_count)
        if is_silent or not any(map(self._is_usable, shard)):
            raise log_unavailable()

    def send(self, call: OpenCall, item: Item) -> None:
        """Send a call. Raises ApiError (503); a later delivery failure ends the call."""
        loop = asyncio.get_running_loop()
        chunk = Chunk(call.job, [item])
        partitions = filter(self._is_usable, partitions_own_first(chunk, _JOB_CLASS))
        partition = next(partitions, None)
        if partition is None:
            raise log_unavailable()

        def on_result(failure: BaseException | None) -> None:
            self._waiting.pop(call, None)
            if failure is not None:
                loop.call_soon_threadsafe(call.fail, log_unavailable())

        place = REQUESTS_INTERACTIVE.name, partition
        self._waiting[call] = place
        report = self._health.track(on_result, place)
        try:
            send_chunk(self._sender, chunk, _JOB_CLASS, report, partition=partition)
        except DeliveryError as failure:
            report(failure)
            raise log_unavailable() from None

    def fail_waiting_calls(self) -> None:
        """End the calls whose records wait for an unavailable partition.

        Their records stay in the producer; batchers drop a call that its caller has ended.
        """
        # A copy is one step. To list the items is not: garbage collection runs other threads.
        for call, place in self._waiting.copy().items():
            has_begun = call.has_started or call.execution_id is not None
            if not has_begun and self._sender.is_unavailable(*place):
                self._waiting.pop(call, None)
                call.fail(log_unavailable())

    def _is_usable(self, partition: int) -> bool:
        place = REQUESTS_INTERACTIVE.name, partition
        pending_s = self._health.oldest_pending_s(place)
        if pending_s > min(_BURST_S, self._patience_s) and not self._sender.has_space(*place):
            return False  # before it fills the producer's queue
        return pending_s <= self._patience_s
