"""Goal: the totals match whatever ends an item, and manipulated ones are named."""

from typing import Any
from uuid import UUID

import httpx
import pytest
import sqlalchemy as sa

from core.ids import new_uuid
from core.states import CloseReason
from results.audit.recorded_totals import ItemTotals, sum_item_rows
from results.retention.deletion import delete_batch
from tests.integration.api.answers import ok, refused
from tests.integration.api.sites import Site
from tests.integration.api.views.batches import RunningBatch, add_batch
from tests.integration.results.outcomes import failed, outcome


def audited(batch: RunningBatch) -> Any:
    with batch.site.client() as client:
        return ok(client.get(f"{batch.path}/audit"))


def ended(site: Site) -> RunningBatch:
    batch = add_batch(site, 40)
    batch.write(*[outcome(index, cached_tokens=1) for index in range(20)])
    batch.write(failed(20, input_tokens=4), failed(21, status_code=0), outcome(3))
    batch.close(CloseReason.EXPIRED)
    return batch


def test_totals_match_at_every_stage(site: Site) -> None:
    batch = add_batch(site, 40)
    assert audited(batch)["ok"]
    batch.write(*[outcome(index) for index in range(20)])
    running = audited(batch)
    batch.close()

    found = audited(batch)

    assert running["ok"]
    assert (running["is_settled"], found["is_settled"]) == (False, True)
    assert running["conservation"]["open"] == 20
    assert found["differences"] == []
    assert found["ok"]


def test_outcomes_and_bill_are_recomputed(site: Site) -> None:
    found = audited(ended(site))

    counts = {"succeeded": 20, "failed": 2, "cancelled": 0, "expired": 18, "ended": 40}
    assert found["conservation"] == {
        "input": 40,
        "rows": counts,
        "counters": counts,
        "sequenced": 40,
        "open": 0,
    }
    usage = {"input_tokens": 64, "output_tokens": 100, "cached_tokens": 20, "reasoning_tokens": 0}
    usage["copied"] = 0
    assert found["usage"] == {
        "rows": usage | {"items": 21},
        "counters": usage,
        "ledger": usage | {"items": 21},
    }
    assert found["log"] is None


ROW = "items WHERE job_id = :job AND item_index ="
CHANGES = {
    f"DELETE FROM {ROW} 5": {
        "items.succeeded",
        "usage.items",
        "usage.input_tokens",
        "usage.output_tokens",
        "usage.cached_tokens",
    },
    f"UPDATE {ROW} 21".replace("WHERE", "SET outcome = 4, input_tokens = 0 WHERE"): {
        "items.failed",
        "items.expired",
    },
    "UPDATE job_counters SET output_tokens = 99 WHERE job_id = :job": {"usage.output_tokens"},
    "UPDATE job_counters SET expired = 17 WHERE job_id = :job": {"items.expired", "items.ended"},
    "INSERT INTO usage_ledger (tenant_id, job_id, model, model_version, item_count, input_tokens,"
    " output_tokens, cached_tokens, reasoning_tokens)"
    " SELECT tenant_id, id, '', '', 1, 0, 0, 0, 0 FROM jobs WHERE id = :job": {"usage.items"},
    "UPDATE job_counters SET copied = 1 WHERE job_id = :job": {"usage.copied"},
    "DELETE FROM job_slices WHERE job_id = :job AND first_sequence = 0": {"items.ended"},
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_manipulated_total_is_named(site: Site, change: str) -> None:
    batch = ended(site)
    with site.engine.begin() as connection:
        assert connection.execute(sa.text(change), {"job": batch.job_id}).rowcount == 1

    found = audited(batch)

    assert not found["ok"]
    assert {difference["what"] for difference in found["differences"]} == CHANGES[change]


def test_a_batch_deleted_during_its_audit_is_not_found(
    site: Site, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = ended(site)
    batch.finalise()

    def deleting(connection: sa.Connection, job: tuple[UUID, int], first: int) -> ItemTotals:
        with site.engine.begin() as other:
            delete_batch(other, site.tenant_id, batch.job_id, key_id=new_uuid())
        return sum_item_rows(connection, job, first)

    monkeypatch.setattr("api.views.audit_routes.sum_item_rows", deleting)
    error = refused(client.get(f"{batch.path}/audit"), 404)
    assert error["code"] == "batch_not_found"


def test_an_api_without_the_log_refuses(site: Site, client: httpx.Client) -> None:
    batch = ended(site)
    error = refused(client.get(f"{batch.path}/audit?log=true"), 400)
    assert error["param"] == "log"
    assert refused(client.get(f"{batch.path}/audit?log=7"), 400)["param"] == "log"
