"""The delivery loop: claim due deliveries, attempt them concurrently, record the outcomes."""

import asyncio
import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, TypeVar
from uuid import UUID

import sqlalchemy as sa

from core.clock import Clock
from core.ids import EVENT, public_id
from core.retry_after import retry_after_s
from core.runtime.open_files import ResourceExhaustedError
from core.webhook_signatures import signed_headers
from results.webhooks import metrics
from results.webhooks.delivery.attempt_recording import (
    AttemptRecorder,
    DeliveryAttempt,
    postpone_delivery,
)
from results.webhooks.delivery.claiming import (
    ClaimLimits,
    WebhookDelivery,
    claim_deliveries,
    release_deliveries,
)
from results.webhooks.delivery.http_sender import HttpSender, SendError
from results.webhooks.delivery.retry_schedule import RETRY_AFTER_S_MAX, DeliveryFailure
from results.webhooks.endpoints.name_resolution import DnsLookups, DnsLookupsBusyError
from results.webhooks.endpoints.receiver_urls import UrlError, parse_url
from results.webhooks.endpoints.signing_secrets import SecretCipher, SecretUnreadableError
from results.webhooks.settings import WebhookSettings
from storage.postgres.engines import DATABASE_UNAVAILABLE

LOG = logging.getLogger(__name__)
T = TypeVar("T")

DATABASE_THREADS: Final = 4
_LEASE_MARGIN_S: Final = 30.0  # a claim outlives the wait for DNS, the attempt and its recording
_PROVEN_MAX: Final = 10_000
_CLAIM_GAP_S: Final = 0.01  # between two claims, so that one claim serves many finished attempts
_RECORD_PAUSE_S: Final = 1.0
_HEADERS: Final = {
    "content-type": "application/json",
    "user-agent": "millrace-webhooks/1",
    "accept": "*/*",
}


@dataclass(slots=True)
class Deliverer:
    """One process of the role; any number may run. Its coroutines share one event loop."""

    engine: sa.Engine
    dns: DnsLookups
    sender: HttpSender
    cipher: SecretCipher
    recorder: AttemptRecorder
    settings: WebhookSettings
    clock: Clock
    holder: str
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _loop: asyncio.AbstractEventLoop | None = None
    _running: dict[asyncio.Task[None], WebhookDelivery] = field(default_factory=dict)
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(DATABASE_THREADS, "deliveries")
    )
    _unavailable_since_s: float | None = None
    _proven: dict[str, None] = field(default_factory=dict)  # queues, the latest success last

    @property
    def _lease_s(self) -> float:
        return self.settings.timeout_s + _LEASE_MARGIN_S

    def wake(self) -> None:
        """Claim deliveries now. Thread-safe."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)

    async def run(self, stop: threading.Event) -> None:
        """Deliver until `stop`.

        1. Claim due deliveries within the limits. 2. Attempt each in a task of its own: sign,
        look up, post. 3. Record the outcome: state, history, backoff of the queue. 4. Without
        claims, wait for `wake`, a finished attempt or `look_interval_s`. On `stop`, running
        attempts get `stop_grace_s`, and claims without an outcome are released.

        Raises one of DATABASE_UNAVAILABLE when Postgres is unavailable for `database_wait_s`.
        """
        self._loop = asyncio.get_running_loop()
        try:
            while not stop.is_set():
                self._wake.clear()
                claimed = await self._claim()
                for delivery in claimed:
                    task = asyncio.create_task(self._deliver(delivery))
                    self._running[task] = delivery
                    task.add_done_callback(self._on_done)
                metrics.RUNNING.set(len(self._running))
                await asyncio.sleep(_CLAIM_GAP_S)
                if not claimed:
                    await self._wait()
        finally:
            await self._shut_down()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._wake.set()  # a slot is free, and its queue may have more

    async def _wait(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.look_interval_s):
                await self._wake.wait()

    async def _shut_down(self) -> None:
        if self._running:
            await asyncio.wait(self._running, timeout=self.settings.stop_grace_s)
        unfinished = list(self._running)
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
        try:
            await self._transaction(lambda c: release_deliveries(c, self.holder))
        except DATABASE_UNAVAILABLE:
            LOG.warning("claims end by themselves: database away")
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _claim(self) -> list[WebhookDelivery]:
        """Claim within the limits; nothing while Postgres is unavailable."""
        running = list(self._running.values())
        settings = self.settings
        tenants: Counter[UUID] = Counter(delivery.tenant_id for delivery in running)
        limits = ClaimLimits(
            slots=settings.slots_max - len(running),
            suspect_slots=settings.slots_max // 2 - sum(d.is_suspect for d in running),
            queue_slots_max=settings.lane_slots_max,
            tenant_slots_max=settings.tenant_slots_max,
            busy_tenants=tenants,
            proven_queues=self._proven,
        )
        if limits.slots <= 0:
            return []
        try:
            claimed, is_more = await self._transaction(
                lambda c: claim_deliveries(c, limits, holder=self.holder, lease_s=self._lease_s)
            )
        except DATABASE_UNAVAILABLE as failure:
            now_s = self.clock.monotonic_s()
            self._unavailable_since_s = self._unavailable_since_s or now_s
            if now_s - self._unavailable_since_s > settings.database_wait_s:
                raise
            LOG.warning("database away", extra={"error": type(failure).__name__})
            return []
        self._unavailable_since_s = None
        if is_more:
            self._wake.set()
        return claimed

    async def _deliver(self, delivery: WebhookDelivery) -> None:
        """Attempt a delivery and record the outcome; an error concerns only this delivery."""
        if delivery.try_count == 1:
            metrics.FIRST_ATTEMPT_AGE.observe(delivery.age_s)
        facts = {
            "webhook": public_id(EVENT, delivery.message_id),
            "endpoint": delivery.endpoint_id,
            "try": delivery.try_count,
        }
        claim_ends_s = self.clock.monotonic_s() + self._lease_s
        try:
            attempt = await self._attempt(delivery)
            state = await self._record(delivery, attempt, claim_ends_s)
        except (DnsLookupsBusyError, ResourceExhaustedError):
            metrics.POSTPONED.inc()
            LOG.info("put off", extra=facts)
            with contextlib.suppress(*DATABASE_UNAVAILABLE):  # the claim expires
                await self._transaction(lambda c: postpone_delivery(c, delivery))
        except DATABASE_UNAVAILABLE:
            LOG.warning("end of a try not written: database away", extra=facts)
        except Exception:  # a defect on one delivery must not end the others; its claim expires
            LOG.exception("a try failed", extra=facts)
        else:
            self._note_result(delivery.lane, is_success=attempt.failure is None)
            result = attempt.error_code or "delivered"
            metrics.ATTEMPTS.labels(result).inc()
            metrics.ATTEMPT_SECONDS.observe(attempt.duration_s)
            if state not in (None, "pending"):
                metrics.ENDED.labels(state).inc()
            LOG.info("tried", extra={**facts, "result": result, "status": attempt.status_code})

    def _note_result(self, lane: str, *, is_success: bool) -> None:
        self._proven.pop(lane, None)
        if is_success:
            self._proven[lane] = None
            if len(self._proven) > _PROVEN_MAX:
                del self._proven[next(iter(self._proven))]

    async def _attempt(self, delivery: WebhookDelivery) -> DeliveryAttempt:
        """Return the attempt's result.

        Raises DnsLookupsBusyError, ResourceExhaustedError: none was made.
        """
        started_s = self.clock.monotonic_s()
        status_code: int | None = None
        failure: DeliveryFailure | None = None
        error_code: str | None = None
        try:
            headers = self._signed(delivery)
            url = parse_url(delivery.url, allow_private=self.settings.allow_private)
            looked_up = await self.dns.start(delivery.tenant_id, url)
            started_s = self.clock.monotonic_s()  # without the wait for a DNS slot
            response = await self.sender.post(url, looked_up, _HEADERS | headers, delivery.body)
            status_code = response.status_code
            if not 200 <= status_code < 300:
                error_code = f"{status_code // 100}xx"
                wait_s = retry_after_s(
                    response.retry_after, delivery.now_s, s_max=RETRY_AFTER_S_MAX
                )
                failure = DeliveryFailure(status_code, wait_s)
        except SendError as error:
            failure, error_code = DeliveryFailure(None), error.code
        except SecretUnreadableError:
            failure, error_code = DeliveryFailure(None), "secret_unreadable"
        except UrlError:  # the rules became stricter, or private addresses are no longer allowed
            failure, error_code = DeliveryFailure(None), "address_refused"
        duration_s = self.clock.monotonic_s() - started_s
        return DeliveryAttempt(delivery.now_s, duration_s, failure, status_code, error_code)

    def _signed(self, delivery: WebhookDelivery) -> dict[str, str]:
        """Return the signature headers. Raises SecretUnreadableError."""
        owner, old = delivery.secret_owner, delivery.sealed_old_secret
        facts = {"endpoint": delivery.endpoint_id, "is_callback": owner == delivery.tenant_id}
        secrets: list[bytes] = []
        try:
            secrets.append(self.cipher.decrypt(delivery.sealed_secret, owner))
            if old is not None:
                secrets.append(self.cipher.decrypt(old, owner))
        except SecretUnreadableError as error:
            LOG.error(error.code, extra={**facts, "is_old": bool(secrets)})  # noqa: TRY400  no cause
            if not secrets:
                raise
        message_id = public_id(EVENT, delivery.message_id)
        return signed_headers(secrets, message_id, int(delivery.now_s), delivery.body)

    async def _record(
        self, delivery: WebhookDelivery, attempt: DeliveryAttempt, claim_ends_s: float
    ) -> str | None:
        """Record an attempt, repeating it until the claim ends: until then no other process can.

        Raises one of DATABASE_UNAVAILABLE.
        """
        while True:
            try:
                return await self._transaction(lambda c: self.recorder.record(c, delivery, attempt))
            except DATABASE_UNAVAILABLE:
                if self.clock.monotonic_s() + _RECORD_PAUSE_S > claim_ends_s:
                    raise
            await asyncio.sleep(_RECORD_PAUSE_S)

    async def _transaction(self, work: Callable[[sa.Connection], T]) -> T:
        def run() -> T:
            with self.engine.begin() as connection:
                return work(connection)

        return await asyncio.get_running_loop().run_in_executor(self._threads, run)
