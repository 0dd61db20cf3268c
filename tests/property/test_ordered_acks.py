"""Goal: only the settled prefix of a partition is acknowledged, once and in order."""

from hypothesis import given
from hypothesis import strategies as st

from batcher.faust_app.ordered_acks import AckTicket, OrderedAcks
from topics.clients.offset_tracker import Partition

PARTITIONS: list[Partition] = [("requests.bulk", 0), ("requests.bulk", 1)]


@given(
    st.lists(
        st.tuples(st.sampled_from(["deliver", "settle", "settle", "drop"]), st.integers(0, 10**6)),
        max_size=200,
    )
)
def test_acknowledged_is_the_settled_prefix_since_the_last_revocation(
    steps: list[tuple[str, int]],
) -> None:
    acknowledged: list[tuple[Partition, int]] = []
    acks = OrderedAcks(acknowledged.append)
    live: dict[Partition, list[tuple[int, AckTicket]]] = {p: [] for p in PARTITIONS}
    start_periodic: list[AckTicket] = []
    expected: list[tuple[Partition, int]] = []
    for number, (action, choice) in enumerate(steps):
        partition = PARTITIONS[choice % 2]
        if action == "deliver":
            ticket = acks.track(
                partition, (partition, number), item_count=choice % 3 + 1, now_s=0.0
            )
            live[partition].append((number, ticket))
            start_periodic.append(ticket)
        elif action == "settle" and start_periodic:
            ticket = start_periodic[choice % len(start_periodic)]
            if ticket.open_count:
                acks.settle(ticket, 1)
        elif action == "drop":
            acks.drop_partitions([partition])
            live[partition] = []
        for tickets in live.values():
            while tickets and tickets[0][1].open_count == 0:
                expected.append((tickets[0][1].partition, tickets.pop(0)[0]))
    for partition in PARTITIONS:
        ours = [e for e in acknowledged if e[0] == partition]
        assert ours == [e for e in expected if e[0] == partition]
    assert acks.acknowledged_count == len(acknowledged)
    assert acks.open_count == sum(map(len, live.values()))


def test_pinning_tickets_precede_settled_ones() -> None:
    acks = OrderedAcks(lambda event: None)
    first, second, third = (acks.track(PARTITIONS[0], n, item_count=1, now_s=0.0) for n in range(3))
    acks.track(PARTITIONS[1], 0, item_count=1, now_s=0.0)
    assert acks.pinning(1.0) == set()
    acks.settle(second, 1)
    assert acks.pinning(1.0) == {first}
    acks.settle(first, 1)
    assert acks.pinning(1.0) == set()
    acks.settle(third, 1)
    assert acks.open_count == 1


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 100)), max_size=50), st.floats(0.1, 10))
def test_requeued_bytes_are_bounded_by_committed_bytes(
    records: list[tuple[bool, int]], gain: float
) -> None:
    acks = OrderedAcks(lambda event: None)
    tickets = [
        acks.track(PARTITIONS[0], n, item_count=1, now_s=0.0, byte_count=size)
        for n, (_, size) in enumerate(records)
    ]
    for ticket, (is_settled, _) in zip(tickets, records, strict=True):
        if is_settled:
            acks.settle(ticket, 1)
    pins = acks.pinning(gain)
    before = acks.open_count
    waiting = [ticket for ticket in tickets if ticket.open_count]
    assert pins == set(waiting[: len(pins)])  # none without those before it
    held = [n for n, ticket in enumerate(tickets) if ticket.open_count]
    front = held[0] if held else len(tickets)
    for ticket in pins:
        acks.settle(ticket, 1)
    freed = before - acks.open_count
    gone = tickets[front : front + freed]
    rewritten = sum(ticket.byte_count for ticket in pins)
    assert gain * rewritten <= sum(t.byte_count for t in gone if t not in pins)
    left = [ticket for ticket in waiting if ticket not in pins]
    kept = sum(t.byte_count for t in tickets[front + freed :] if not t.open_count)
    assert kept == 0 or kept < gain * sum(ticket.byte_count for ticket in left)
