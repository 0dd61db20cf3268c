"""Goal: unreadable records do not hide dispatched items."""

import pytest

from results.views.dispatched_items import DispatchedItems, _add_items
from topics.records.codec import Headers
from topics.records.received_record import ReceivedRecord


@pytest.mark.parametrize(
    "headers",
    [
        [("kind", b"batch"), ("schema", b"99")],
        [("kind", b"of a newer release"), ("schema", b"1")],
        [("kind", b"batch"), ("schema", b"1")],
        [],
    ],
    ids=["newer schema", "unknown kind", "unreadable", "no headers"],
)
def test_record_of_a_newer_release_is_skipped(headers: Headers) -> None:
    found: DispatchedItems = {}
    _add_items(found, [ReceivedRecord("batches.p.bulk", 0, 0, None, headers, b"?", 0)])

    assert found == {}
