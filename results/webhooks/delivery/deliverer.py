"""The loop that delivers: claim what is due, try each at once, write how it ended."""

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
from core.open_files import ShortageError
from core.retry_after import retry_after_s
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
from results.webhooks.delivery.signatures import signed_headers
from results.webhooks.endpoints.dns_lookups import DnsLookups, DnsLookupsBusyError
from results.webhooks.endpoints.receiver_urls import UrlError, parse_url
from results.webhooks.endpoints.secret_encryption import SecretCipher, SecretUnreadableError
from results.webhooks.settings import WebhookSettings
from storage.postgres.engines import DATABASE_AWAY

LOG = logging.getLogger(__name__)
T = TypeVar("T")

DATABASE_THREADS: Final = 4
_LEASE_MARGIN_S: Final = 30.0  # a claim outlives a wait for a look-up, its try and the end's row
_PROVEN_MAX: Final = 10_000
_GAP_S: Final = 0.01  # between two claims, so that many ends are one look
_SETTLE_PAUSE_S: Final = 1.0
_HEADERS: Final = {
    "content-type": "application/json",
    "user-agent": "millrace-webhooks/1",
    "accept": "*/*",
}


@dataclass(slots=True)
class Deliverer:
    """One process of the role; any number may run. Its coroutines run on one loop."""

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
    _away_since_s: float | None = None
    _proven: dict[str, None] = field(default_factory=dict)  # lanes, the latest success last

    @property
    def _lease_s(self) -> float:
        return self.settings.timeout_s + _LEASE_MARGIN_S

    def wake(self) -> None:
        """Look for deliveries now; from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)

    async def run(self, stop: threading.Event) -> None:
        """Deliver until `stop`, then for `stop_grace_s` what runs.

        Raises one of DATABASE_AWAY after `database_wait_s` of it.
        """
        self._loop = asyncio.get_running_loop()
        try:
            while not stop.is_set():
                self._wake.clear()
                claimed = await self._claim()
                for delivery in claimed:
                    task = asyncio.create_task(self._deliver(delivery))
                    self._running[task] = delivery
                    task.add_done_callback(self._forget)
                metrics.RUNNING.set(len(self._running))
                await asyncio.sleep(_GAP_S)
                if not claimed:
                    await self._rest()
        finally:
            await self._stop()

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._wake.set()  # its slot is free, and its lane may have more

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(self.settings.look_interval_s):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _stop(self) -> None:
        if self._running:
            await asyncio.wait(self._running, timeout=self.settings.stop_grace_s)
        cut = list(self._running)
        for task in cut:
            task.cancel()
        await asyncio.gather(*cut, return_exceptions=True)
        try:
            await self._transaction(lambda c: release_deliveries(c, self.holder))
        except DATABASE_AWAY:
            LOG.warning("claims end by themselves: database away")
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _claim(self) -> list[WebhookDelivery]:
        """Claim what there is room for; nothing while Postgres is away."""
        running = list(self._running.values())
        limits = self.settings
        tenants: Counter[UUID] = Counter(delivery.tenant_id for delivery in running)
        room = ClaimLimits(
            slots=limits.slots_max - len(running),
            suspect_slots=limits.slots_max // 2 - sum(d.is_suspect for d in running),
            lane_slots_max=limits.lane_slots_max,
            tenant_slots_max=limits.tenant_slots_max,
            busy_tenants=tenants,
            proven_lanes=self._proven,
        )
        if room.slots <= 0:
            return []
        try:
            claimed, is_more = await self._transaction(
                lambda c: claim_deliveries(c, room, holder=self.holder, lease_s=self._lease_s)
            )
        except DATABASE_AWAY as failure:
            now_s = self.clock.monotonic_s()
            self._away_since_s = self._away_since_s or now_s
            if now_s - self._away_since_s > limits.database_wait_s:
                raise
            LOG.warning("database away", extra={"error": type(failure).__name__})
            return []
        self._away_since_s = None
        if is_more:
            self._wake.set()
        return claimed

    async def _deliver(self, delivery: WebhookDelivery) -> None:
        """Try once and write how it ended; what goes wrong here is this delivery's alone."""
        if delivery.try_count == 1:
            metrics.FIRST_TRY_AGE.observe(delivery.age_s)
        facts = {
            "webhook": public_id(EVENT, delivery.message_id),
            "endpoint": delivery.endpoint_id,
            "try": delivery.try_count,
        }
        claim_ends_s = self.clock.monotonic_s() + self._lease_s
        try:
            attempt = await self._try(delivery)
            state = await self._settle(delivery, attempt, claim_ends_s)
        except (DnsLookupsBusyError, ShortageError):
            metrics.PUT_OFF.inc()
            LOG.info("put off", extra=facts)
            with contextlib.suppress(*DATABASE_AWAY):  # its claim ends by itself
                await self._transaction(lambda c: postpone_delivery(c, delivery))
        except DATABASE_AWAY:
            LOG.warning("end of a try not written: database away", extra=facts)
        except Exception:
            LOG.exception("a try failed", extra=facts)
        else:
            self._learn(delivery.lane, is_well=attempt.failure is None)
            result = attempt.error_code or "delivered"
            metrics.TRIES.labels(result).inc()
            metrics.TRY_SECONDS.observe(attempt.duration_s)
            if state not in (None, "pending"):
                metrics.ENDED.labels(state).inc()
            LOG.info("tried", extra={**facts, "result": result, "status": attempt.status_code})

    def _learn(self, lane: str, *, is_well: bool) -> None:
        self._proven.pop(lane, None)
        if is_well:
            self._proven[lane] = None
            if len(self._proven) > _PROVEN_MAX:
                del self._proven[next(iter(self._proven))]

    async def _try(self, delivery: WebhookDelivery) -> DeliveryAttempt:
        """Return how the try ended. Raises DnsLookupsBusyError, ShortageError: there was none."""
        began_s = self.clock.monotonic_s()
        status_code: int | None = None
        failure: DeliveryFailure | None = None
        error_code: str | None = None
        try:
            headers = self._signed(delivery)
            url = parse_url(delivery.url, allow_private=self.settings.allow_private)
            looked_up = await self.dns.start(delivery.tenant_id, url)
            began_s = self.clock.monotonic_s()  # the wait for a place was ours
            answer = await self.sender.post(url, looked_up, _HEADERS | headers, delivery.body)
            status_code = answer.status_code
            if not 200 <= status_code < 300:
                error_code = f"{status_code // 100}xx"
                wait_s = retry_after_s(answer.retry_after, delivery.now_s, s_max=RETRY_AFTER_S_MAX)
                failure = DeliveryFailure(status_code, wait_s)
        except SendError as error:
            failure, error_code = DeliveryFailure(None), error.code
        except SecretUnreadableError:
            failure, error_code = DeliveryFailure(None), "secret_unreadable"
        except UrlError:  # the rules have become stricter, or private ones are no longer allowed
            failure, error_code = DeliveryFailure(None), "address_refused"
        duration_s = self.clock.monotonic_s() - began_s
        return DeliveryAttempt(delivery.now_s, duration_s, failure, status_code, error_code)

    def _signed(self, delivery: WebhookDelivery) -> dict[str, str]:
        """Return the headers that sign. Raises SecretUnreadableError."""
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

    async def _settle(
        self, delivery: WebhookDelivery, attempt: DeliveryAttempt, claim_ends_s: float
    ) -> str | None:
        """Write how a try ended, as often as it takes while nobody else may repeat it.

        Raises one of DATABASE_AWAY.
        """
        while True:
            try:
                return await self._transaction(lambda c: self.recorder.record(c, delivery, attempt))
            except DATABASE_AWAY:
                if self.clock.monotonic_s() + _SETTLE_PAUSE_S > claim_ends_s:
                    raise
            await asyncio.sleep(_SETTLE_PAUSE_S)

    async def _transaction(self, work: Callable[[sa.Connection], T]) -> T:
        def run() -> T:
            with self.engine.begin() as connection:
                return work(connection)

        return await asyncio.get_running_loop().run_in_executor(self._threads, run)
