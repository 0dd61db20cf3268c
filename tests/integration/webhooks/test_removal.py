"""Goal: what is old enough goes, however much it is and whoever removes beside."""

import pytest
import sqlalchemy as sa

from results.webhooks.removal import MessageRemoval
from results.webhooks.tables import webhook_messages
from tests.integration.webhooks.conftest import Site


def old_messages(site: Site, count: int) -> None:
    """Messages of which the first one is the oldest."""
    with site.engine.begin() as connection:
        connection.execute(
            sa.text(
                "INSERT INTO webhook_messages (id, tenant_id, event_type, body, created_at) "
                "SELECT gen_random_uuid(), :tenant, 'batch.completed', '{}', "
                "now() - interval '40 days' + n * interval '1 s' FROM generate_series(1, :count) n"
            ).bindparams(sa.bindparam("tenant", type_=sa.Uuid)),
            {"tenant": site.tenant_id, "count": count},
        )


def kept(site: Site) -> int:
    with site.engine.begin() as connection:
        return connection.scalar(sa.select(sa.func.count()).select_from(webhook_messages)) or 0


def test_all_that_is_old_goes_in_one_turn_slice_by_slice(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("results.webhooks.removal._SLICE", 10)
    old_messages(site, 35)
    asked = []

    def is_over() -> bool:
        asked.append(kept(site))
        return len(asked) >= 3

    MessageRemoval(site.engine, 30, is_over).step()
    assert asked[:3] == [35, 25, 15]  # each slice was committed, and none was begun after the stop
    MessageRemoval(site.engine, 30).step()
    assert kept(site) == 0


def test_a_process_passes_over_what_another_one_removes(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("results.webhooks.removal._SLICE", 10)
    old_messages(site, 25)
    oldest = sa.select(webhook_messages).order_by(webhook_messages.c.created_at).limit(10)
    with site.engine.connect() as other:
        other.execute(oldest.with_for_update())
        MessageRemoval(site.engine, 30).step()
        assert kept(site) == 10
