"""Manual acknowledgement in delivery order: an event is acknowledged when it and all before it are.

Faust commits past events that were not acknowledged, so only the settled prefix of each partition
is ever acknowledged. Knows nothing of Faust: the event is opaque and acknowledged by a callback.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from topics.clients.offsets import Partition


class AckTicket:
    """One delivered record, until everything that it carried is durable elsewhere."""

    __slots__ = ("arrived_s", "byte_count", "dropped", "event", "open_count", "partition")

    def __init__(
        self,
        partition: Partition,
        event: Any,
        item_count: int,
        arrived_s: float,
        *,
        byte_count: int = 0,
    ) -> None:
        """`event` is kept alive by its ticket: Faust itself holds it weakly."""
        self.partition = partition
        self.event = event
        self.open_count = item_count
        self.arrived_s = arrived_s
        self.byte_count = byte_count
        self.dropped = False


class OrderedAcks:
    """Tickets by partition, in delivery order."""

    def __init__(self, acknowledge: Callable[[Any], None]) -> None:
        """`acknowledge` is called once for each event, in delivery order per partition."""
        self._acknowledge = acknowledge
        self._tickets: dict[Partition, deque[AckTicket]] = {}
        self.acknowledged_count = 0

    def delivered(
        self,
        partition: Partition,
        event: Any,
        *,
        item_count: int,
        now_s: float,
        byte_count: int = 0,
    ) -> AckTicket:
        """A record arrived that carries `item_count` things to settle, at least one.

        `byte_count`, its size in memory, decides only what `pinning` returns.
        """
        assert item_count > 0
        ticket = AckTicket(partition, event, item_count, now_s, byte_count=byte_count)
        self._tickets.setdefault(partition, deque()).append(ticket)
        return ticket

    def settle(self, ticket: AckTicket, item_count: int) -> None:
        """Some of the record's items are durable elsewhere. Ignored when it was dropped."""
        if ticket.dropped:
            return
        assert 0 < item_count <= ticket.open_count
        ticket.open_count -= item_count
        waiting = self._tickets[ticket.partition]
        while waiting and waiting[0].open_count == 0:
            self._acknowledge(waiting.popleft().event)
            self.acknowledged_count += 1

    def drop(self, partitions: Iterable[Partition]) -> None:
        """The partitions belong to others now: their records are delivered again, there or here."""
        for partition in partitions:
            for ticket in self._tickets.pop(partition, ()):
                ticket.dropped = True

    def pinning(self, gain: float) -> set[AckTicket]:
        """Return unsettled tickets that keep enough settled ones of their partition waiting.

        Enough: among the first tickets of the partition, up to some settled one, the settled have
        `gain` times the bytes of the unsettled or more.
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
