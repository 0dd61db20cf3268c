"""The membership of this process in the group `autoscaler`, which a thread polls."""

import logging
import threading
from collections.abc import Mapping
from typing import Final

from autoscaler.metrics import EPOCH, IS_OWNER
from autoscaler.ownership.epoch_claim import EpochClaim
from autoscaler.signals.topic_inputs import decoded
from core.clock import Clock
from topics.clients.consumer import GroupConsumer
from topics.clients.offset_tracker import Partition
from topics.clients.producer import RecordSender
from topics.errors import KafkaUnavailableError
from topics.records.catalogue import SCALING
from topics.records.codec import encode, kind_headers
from topics.records.scaling import AutoscalerEpoch, PoolScaling, ScalingOverride
from topics.settings import KafkaSettings

GROUP: Final = "autoscaler"
_PARTITION: Final = (SCALING.name, 0)
_POLL_S: Final = 0.1
_RECORDS_MAX: Final = 500
_PAUSE_S_MAX: Final = 3.0
"""Time without a poll after which the process was paused, and may not be the owner any more."""

_STOP_S_MAX: Final = 10.0
_LOG = logging.getLogger(__name__)


class Owner:
    """Polls the group. `epoch`, `pools` and `overrides` may be read by any thread.

    A poll follows each 0.1 s, so a process that was removed from the group, or whose successor
    wrote a higher epoch, stops deciding within that time.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        producer: RecordSender,
        *,
        owner_id: str,
        clock: Clock,
        unavailable_s_max: float = 60.0,
    ) -> None:
        """Join the group; `start` polls it, while Kafka is unavailable for that long at most."""
        self._unavailable_s_max = unavailable_s_max
        self._unknown_since_s: float | None = None
        self._producer, self._clock = producer, clock
        self._claim = EpochClaim(owner_id)
        self._epoch: int | None = None
        self._polled_s = clock.monotonic_s()
        self._refused_epoch: int | None = None
        self._failure: Exception | None = None
        self._stopping = threading.Event()
        self._consumer = GroupConsumer(
            kafka,
            group=GROUP,
            topics=[SCALING.name],
            client_id=owner_id,
            on_assign=self._assign,
            on_revoke=self._revoke,
        )
        self._thread = threading.Thread(target=self._run, name="scaling-owner", daemon=True)

    def start(self) -> None:
        """Poll until `stop`."""
        self._thread.start()

    @property
    def epoch(self) -> int | None:
        """The epoch with which this process decides; None: it is not the owner."""
        is_paused = self._clock.monotonic_s() - self._polled_s > _PAUSE_S_MAX
        if is_paused or self._refused_epoch is not None:
            return None
        return self._epoch

    @property
    def pools(self) -> Mapping[str, PoolScaling]:
        """The newest state of each pool; read it when the epoch begins."""
        return dict(self._claim.log.pools)

    @property
    def overrides(self) -> Mapping[str, ScalingOverride]:
        """What operators ordered, by pool."""
        return dict(self._claim.log.overrides)

    def abandon(self, refused_epoch: int) -> None:
        """Stop deciding: an actuator has carried out orders of `refused_epoch`. Join anew."""
        self._refused_epoch = refused_epoch

    def raise_failure(self) -> None:
        """Raise what ended the thread. Raises MillraceError."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Leave the group, so that another process takes over at once."""
        self._stopping.set()
        self._epoch = None
        self._thread.join(_STOP_S_MAX)
        if not self._thread.is_alive():  # a client must not be closed while it polls
            self._consumer.close()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._poll_once()
        except Exception as failure:  # noqa: BLE001  the thread's loop: see `raise_failure`
            self._failure = failure
        finally:
            self._epoch = None

    def _poll_once(self) -> None:
        claim = self._claim
        received = self._consumer.poll(_RECORDS_MAX, _POLL_S)
        if received:
            claim.apply(decoded(received, SCALING.records), received[-1].offset + 1)
        if claim.needs_end:
            self._find_end()
        if (epoch := claim.take_claim()) is not None:
            self._append(epoch)
        if self._refused_epoch is not None or claim.is_superseded:
            self._rejoin()
        if self._epoch != claim.epoch:
            self._epoch = claim.epoch
            IS_OWNER.set(self._epoch is not None)
            if self._epoch is not None:
                _LOG.info("this process decides", extra={"epoch": self._epoch})
        EPOCH.set(claim.log.epoch)
        self._polled_s = self._clock.monotonic_s()

    def _find_end(self) -> None:
        """Find the end of the partition, or try again at the next poll: its leader may move.

        Raises KafkaUnavailableError when it could not be found for `unavailable_s_max`.
        """
        now_s = self._clock.monotonic_s()
        try:
            end = self._consumer.end_offsets([_PARTITION])[_PARTITION]
        except KafkaUnavailableError:
            if self._unknown_since_s is None:
                self._unknown_since_s = now_s
            if now_s - self._unknown_since_s > self._unavailable_s_max:
                raise
            return
        self._unknown_since_s = None
        self._claim.set_end(end)

    def _append(self, epoch: int) -> None:
        owner = self._claim.owner_id
        record = AutoscalerEpoch(epoch=epoch, owner_id=owner, at_s=self._clock.wall_s())
        self._producer.send(
            SCALING.name,
            encode(record),
            partition=0,
            key=b"epoch",
            headers=kind_headers(AutoscalerEpoch),
        )

    def _rejoin(self) -> None:
        self._epoch = None
        self._claim.require_above(self._refused_epoch or 0)
        self._refused_epoch = None
        self._claim.revoke()
        _LOG.warning("another autoscaler decides", extra={"epoch": self._claim.log.epoch})
        self._consumer.rejoin()

    def _assign(self, partitions: list[Partition]) -> None:
        if _PARTITION in partitions:
            self._claim.assign()

    def _revoke(self, partitions: list[Partition]) -> None:
        if _PARTITION in partitions:
            self._epoch = None
            IS_OWNER.set(0)
            self._claim.revoke()
