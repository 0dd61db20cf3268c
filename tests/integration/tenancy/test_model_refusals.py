"""Goal: a refused model gets one audit entry a day, however many processes see it."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import sqlalchemy as sa

from tenancy import model_refusals
from tenancy.audit_log import Action
from tenancy.audit_reading import verify_chain
from tenancy.installation_log import INSTALLATION
from tenancy.model_refusals import (
    FULL_RETRY_S,
    LOOK_BACK,
    REPEATED_AFTER_S,
    ModelRefusal,
    recent_entries,
    record_model_refusal,
)
from tenancy.tables import audit_log
from tests.integration.jobs.plans import plan

REFUSAL = ModelRefusal("pool-small", "a" * 64, "signature")
IS_REFUSAL = audit_log.c.action == Action.MODEL_REFUSED.value

FILL = sa.text("""
INSERT INTO audit_log (id, tenant_id, sequence, created_at, actor, action, subject, details,
    previous_hash, hash)
SELECT gen_random_uuid(), lpad(to_hex(t), 32, '0')::uuid, n, now(), 'cli', 'model.refused', 'p',
    '{"version": null, "reason": "memory"}', '', ''
FROM generate_series(1, 20000) n, generate_series(0, 3) t
""")


def record(engine: sa.Engine, refusal: ModelRefusal = REFUSAL) -> float:
    with engine.begin() as connection:
        return record_model_refusal(connection, refusal)


def entries(engine: sa.Engine) -> list[sa.Row[Any]]:
    with engine.connect() as connection:
        assert verify_chain(connection, INSTALLATION, {}).mismatch is None
        return list(connection.execute(sa.select(audit_log).where(IS_REFUSAL)))


def test_processes_that_see_a_refusal_at_once_write_one_entry(engine: sa.Engine) -> None:
    start = Barrier(4)

    def see(_: int) -> float:
        with engine.begin() as connection:
            connection.execute(sa.text("SELECT 1"))  # all transactions have begun
            start.wait(30)
            return record_model_refusal(connection, REFUSAL)

    with ThreadPoolExecutor(4) as threads:
        rests_s = list(threads.map(see, range(4)))

    [entry] = entries(engine)
    assert (entry.actor, entry.subject) == ("system", "pool-small")
    assert {**entry.details, "address": None} == {
        **REFUSAL._asdict(),
        "address": None,
        "request_id": None,
    }
    assert max(rests_s) == REPEATED_AFTER_S
    assert min(rests_s) > REPEATED_AFTER_S - 60


def test_each_pool_version_and_reason_has_an_entry(engine: sa.Engine) -> None:
    seen = [
        REFUSAL,
        REFUSAL._replace(reason="memory"),
        REFUSAL._replace(version=None),
        REFUSAL._replace(pool="other"),
    ]
    for refusal in (*seen, *seen):
        record(engine, refusal)
    found = [tuple(row.details[name] for name in REFUSAL._fields) for row in entries(engine)]
    assert sorted(found, key=str) == sorted(map(tuple, seen), key=str)


@pytest.mark.parametrize(("age_h", "count"), [(23, 1), (25, 2)])
def test_a_day_later_the_same_refusal_has_another_entry(
    engine: sa.Engine, age_h: int, count: int
) -> None:
    record(engine)
    with engine.begin() as connection:
        connection.execute(sa.text("SET LOCAL session_replication_role = replica"))
        earlier = audit_log.c.created_at - sa.func.make_interval(0, 0, 0, 0, age_h)
        connection.execute(sa.update(audit_log).values(created_at=earlier))
    rest_s = record(engine)
    with engine.connect() as connection:
        query = sa.select(sa.func.count()).select_from(audit_log).where(IS_REFUSAL)
        assert connection.scalar(query) == count
    due_s = 3_600 if age_h == 23 else REPEATED_AFTER_S
    assert due_s - 60 < rest_s <= due_s


def test_a_day_has_a_limited_number_of_entries(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_refusals, "ENTRIES_MAX", 2)
    rests_s = [record(engine, REFUSAL._replace(pool=f"p{number}")) for number in range(4)]
    assert rests_s == [REPEATED_AFTER_S] * 2 + [FULL_RETRY_S] * 2
    assert len(entries(engine)) == 2


def test_a_long_chain_is_read_at_its_end_alone(connection: sa.Connection) -> None:
    connection.execute(FILL)
    connection.execute(sa.text("ANALYZE audit_log"))
    text, rows = plan(connection, recent_entries(ModelRefusal("p", None, "memory"), 20_000))
    assert "uq_audit_log_tenant_id_sequence" in text
    assert rows == LOOK_BACK
    connection.rollback()
