"""Manual acknowledgement in delivery order: an event is acknowledged after all before it.

Faust commits past events that were not acknowledged, so only the settled prefix of each partition
is ever acknowledged. Independent of Faust: the event is opaque, a callback acknowledges it.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from topics.clients.offset_tracker import Partition


@dataclass(slots=True, eq=False)
class AckTicket:
    """One delivered record, until everything that it carries is durable elsewhere."""

    partition: Partition
    event: Any  # kept alive: Faust itself references it weakly
    open_count: int  # items to settle
    arrived_s: float
    byte_count: int = 0
    is_dropped: bool = False
    queued_s: float = 0.0  # on the log, from its append until it was read


class OrderedAcks:
    """Tickets by partition, in delivery order."""

    def __init__(self, acknowledge: Callable[[Any], None]) -> None:
        """`acknowledge` is called once for each event, in delivery order per partition."""
        self._acknowledge = acknowledge
        self._tickets: dict[Partition, deque[AckTicket]] = {}
        self.acknowledged_count = 0

    def track(
        self,
        partition: Partition,
        event: Any,
        *,
        item_count: int,
        now_s: float,
        byte_count: int = 0,
    ) -> AckTicket:
        """Return the ticket of a delivered record with `item_count` items to settle, at least one.

        `byte_count`, the record's size in memory, only affects `pinning`.
        """
        assert item_count > 0
        ticket = AckTicket(partition, event, item_count, now_s, byte_count=byte_count)
        self._tickets.setdefault(partition, deque()).append(ticket)
        return ticket

    def settle(self, ticket: AckTicket, item_count: int) -> None:
        """Record that some items are durable elsewhere. Ignored for a dropped ticket."""
        if ticket.is_dropped:
            return
        assert 0 < item_count <= ticket.open_count
        ticket.open_count -= item_count
        waiting = self._tickets[ticket.partition]
        while waiting and waiting[0].open_count == 0:
            self._acknowledge(waiting.popleft().event)
            self.acknowledged_count += 1

    def drop_partitions(self, partitions: Iterable[Partition]) -> None:
        """Forget the tickets of revoked partitions: their records are delivered again."""
        for partition in partitions:
            for ticket in self._tickets.pop(partition, ()):
                ticket.is_dropped = True

    def pinning(self, gain: float) -> set[AckTicket]:
        """Return the unsettled tickets that keep many settled ones from being committed.

        A settled ticket is committed only after all tickets before it. An unsettled one is
        returned if, up to some settled ticket behind it on its partition, the settled tickets have
        at least `gain` times the bytes of the unsettled ones.
        """
        pins: set[AckTicket] = set()
        for tickets in self._tickets.values():
            open_bytes = settled_bytes = 0
            unsettled: list[AckTicket] = []
            for ticket in tickets:
                if ticket.open_count:
                    unsettled.append(ticket)
                    open_bytes += ticket.byte_count
                    continue
                settled_bytes += ticket.byte_count
                if settled_bytes >= gain * open_bytes:
                    pins.update(unsettled)
                    unsettled.clear()
        return pins

    @property
    def open_count(self) -> int:
        """Events that are not acknowledged."""
        return sum(map(len, self._tickets.values()))
