"""Goal: the bill of a tenant for a month reads the rows of the tenant and month alone."""

from uuid import UUID

import sqlalchemy as sa

from tenancy.tables import usage_ledger
from tests.integration.jobs.plans import plan

TENANTS, ROWS_OF_EACH = 50, 400

FILL = sa.text("""
INSERT INTO usage_ledger (tenant_id, job_id, model, model_version, item_count, input_tokens,
    output_tokens, cached_tokens, reasoning_tokens, created_at)
SELECT lpad(to_hex(t), 32, '0')::uuid, gen_random_uuid(), 'small', '1', 1, 1, 1, 0, 0,
    TIMESTAMPTZ '2026-01-01 00:00+00' + n * interval '6 h'
FROM generate_series(1, :rows) n, generate_series(1, :tenants) t
""")


def test_a_month_of_a_tenant_is_summed_by_index(connection: sa.Connection) -> None:
    connection.execute(FILL.bindparams(rows=ROWS_OF_EACH, tenants=TENANTS))
    connection.execute(sa.text("ANALYZE usage_ledger"))
    columns = usage_ledger.c
    month = (sa.text("created_at >= '2026-02-01 00:00+00' AND created_at < '2026-03-01 00:00+00'"),)
    sums = sa.select(columns.model, sa.func.sum(columns.input_tokens)).group_by(columns.model)
    text, rows = plan(connection, sums.where(columns.tenant_id == UUID(int=7), *month))
    assert "ix_usage_ledger_tenant_id_created_at" in text
    assert rows == 28 * 4
