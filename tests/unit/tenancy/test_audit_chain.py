"""Goal: any change of a chain is reported at its first mismatching entry."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenancy.audit_log import Details, entry_hash, first_hash
from tenancy.audit_reading import ChainHead, verify_entries

TENANT = UUID(int=7)
MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


@dataclass(frozen=True)
class Row:
    """A row of the audit log."""

    sequence: int
    previous_hash: bytes
    hash: bytes
    tenant_id: UUID = TENANT
    created_at: datetime = MOMENT
    actor: str = "cli"
    action: str = "job.created"
    subject: str = "batch_1"
    details: Details = None  # type: ignore[assignment]


def chain(length: int, *, actor: str = "cli") -> list[Row]:
    rows: list[Row] = []
    before = first_hash(TENANT)
    for sequence in range(1, length + 1):
        row = Row(sequence, before, b"", actor=actor, details={"n": sequence})
        rows.append(replace(row, hash=entry_hash(row, before)))
        before = rows[-1].hash
    return rows


def head_of(rows: list[Row]) -> ChainHead:
    return ChainHead(TENANT, rows[-1].sequence, rows[-1].hash)


def mismatch(
    head: ChainHead, rows: list[Row], anchors: dict[int, set[bytes]] | None = None
) -> tuple[int, str]:
    """Return the sequence and the reason of the first mismatch."""
    found = verify_entries(head, rows, anchors or {}).mismatch
    assert found is not None
    return found.sequence, found.reason


def test_the_hash_format_is_stable() -> None:
    row = Row(1, first_hash(TENANT), b"", details={"b": [1], "a": "é"})  # type: ignore[list-item]

    assert first_hash(TENANT).hex() == (
        "f74445de7aa51f1c28264f01506f002ac9d5c8a16cffa4419a8a30d321f6697c"
    )
    assert entry_hash(row, first_hash(TENANT)).hex() == (
        "2bb8f07731e19490e546239ffa33e02f3b433d107608c4296284fefa78d8bc48"
    )


@given(length=st.integers(1, 20))
def test_an_unchanged_chain_verifies(length: int) -> None:
    rows = chain(length)
    found = verify_entries(head_of(rows), rows, {1: {rows[0].hash}, length: {rows[-1].hash}})
    assert (found.mismatch, found.head) == (None, head_of(rows))


CHANGES: dict[str, Any] = {
    "created_at": MOMENT + timedelta(microseconds=1),
    "actor": "key_1",
    "action": "job.deleted",
    "subject": "batch_2",
    "details": {},
    "hash": b"x" * 32,
    "tenant_id": UUID(int=8),
}


@given(place=st.integers(0, 9), field=st.sampled_from(sorted(CHANGES)))
def test_a_changed_entry_is_reported(place: int, field: str) -> None:
    rows = chain(10)
    changed = [*rows]
    changed[place] = replace(rows[place], **{field: CHANGES[field]})
    found = verify_entries(head_of(rows), changed, {})
    assert found.mismatch is not None
    assert found.mismatch.sequence == place + 1
    assert found.head.sequence == place


REMOVALS: dict[str, tuple[Callable[[list[Row]], list[Row]], int]] = {
    "the first": (lambda rows: rows[1:], 1),
    "one within": (lambda rows: rows[:4] + rows[5:], 5),
    "the last": (lambda rows: rows[:-1], 10),
    "all": (lambda rows: [], 1),
    "one twice": (lambda rows: [*rows[:4], rows[3], *rows[4:]], 5),
}


@pytest.mark.parametrize(("change", "sequence"), REMOVALS.values(), ids=REMOVALS)
def test_a_missing_entry_is_reported(
    change: Callable[[list[Row]], list[Row]], sequence: int
) -> None:
    rows = chain(10)
    found, _ = mismatch(head_of(rows), change(rows))
    assert found == sequence


def test_a_changed_head_is_reported() -> None:
    rows = chain(3)
    assert mismatch(ChainHead(TENANT, 3, b"x" * 32), rows) == (3, "the head says otherwise")


def test_a_rewritten_chain_fails_only_its_anchors() -> None:
    honest, forged = chain(10), chain(10, actor="key_other")
    anchor = {6: {honest[5].hash}}

    assert verify_entries(head_of(forged), forged, {}).mismatch is None
    assert mismatch(head_of(forged), forged, anchor) == (6, "the anchor says otherwise")
    cut = honest[:4]
    assert verify_entries(head_of(cut), cut, {}).mismatch is None
    assert mismatch(head_of(cut), cut, anchor) == (5, "the row is missing")


def test_conflicting_anchors_never_match() -> None:
    honest, forged = chain(10), chain(10, actor="key_other")
    anchors = {6: {honest[5].hash, forged[5].hash}}
    for rows in (honest, forged):
        assert mismatch(head_of(rows), rows, anchors) == (6, "the anchor says otherwise")
