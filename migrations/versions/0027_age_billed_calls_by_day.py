"""Partition the table of billed calls by the day of the call, so that old days are dropped whole.

The existing table becomes the partition of all days before the first one that has its own, a week
from now. In that partition the request id alone is unique: so a results writer of the release
before, whose rows name no day, and one of this release skip each other's duplicates. After the week
a writer of the release before is refused: it would not see the rows in the partitions of days.
"""

from typing import Any, Final

import sqlalchemy as sa
from alembic import op

from migrations.indexes import build, is_new

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

TABLE: Final = "billed_calls"
OLD: Final = "billed_calls_before"
"""Begins the name of the partition that was the table; its first day behind it follows."""

ROLLING_DAYS: Final = 7
"""How long writers of the release before may run beside those of this one."""

REFUSED_BEFORE_S: Final = 3600
"""How much earlier they are refused: clocks of api processes, which name the day, may differ."""

FIRST_DAY: Final = f"""
SELECT (now() AT TIME ZONE 'UTC')::date - DATE '1970-01-01' + {ROLLING_DAYS},
    to_char((now() AT TIME ZONE 'UTC')::date + {ROLLING_DAYS}, 'YYYYMMDD')
"""

COMMENT: Final = (
    "So that no report of a call is billed twice; forgotten when the log has forgotten it"
)
UNIQUE: Final = "uq_billed_calls_day"
CHECK: Final = "ck_billed_calls_before"

REFUSE: Final = """
CREATE FUNCTION refuse_undated_bills() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF extract(epoch FROM now()) >= TG_ARGV[0]::bigint THEN
        RAISE EXCEPTION 'a results writer of a release before 0027 runs: stop it'
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    RETURN NEW;
END $$
"""

# The owner and the rights of the table are those of its partition.
KEEP_RIGHTS: Final = """
DO $$ DECLARE entry record; BEGIN
    EXECUTE (SELECT format('ALTER TABLE {new} OWNER TO %I', pg_get_userbyid(relowner))
        FROM pg_class WHERE oid = '{old}'::regclass);
    FOR entry IN SELECT privilege_type, grantee FROM pg_class, aclexplode(relacl)
        WHERE oid = '{old}'::regclass AND grantee <> relowner LOOP
        EXECUTE format('GRANT %s ON {new} TO %s', entry.privilege_type,
            CASE entry.grantee WHEN 0 THEN 'PUBLIC'
                ELSE quote_ident(pg_get_userbyid(entry.grantee)) END);
    END LOOP;
END $$
"""


def upgrade() -> None:
    """Apply. The table is locked for two changes of the catalogue, not while it is read."""
    if is_new(TABLE, "request_day"):
        op.add_column(TABLE, _request_day())
    build(UNIQUE, TABLE, ["request_day", "request_id"], unique=True)
    ((first_day, date),) = op.get_bind().execute(sa.text(FIRST_DAY)).all()
    with op.get_context().autocommit_block():  # the check reads every row, and blocks nobody
        op.execute(f"ALTER TABLE {TABLE} DROP CONSTRAINT IF EXISTS {CHECK}")
        is_before = f"CHECK (request_day < {first_day}) NOT VALID"
        op.execute(f"ALTER TABLE {TABLE} ADD CONSTRAINT {CHECK} {is_before}")
        op.execute(f"ALTER TABLE {TABLE} VALIDATE CONSTRAINT {CHECK}")
    _attach(f"{OLD}_{date}", first_day)


def _attach(old: str, first_day: int) -> None:
    """Put the table below a new one with its name, in one transaction."""
    for name in (f"pk_{TABLE}", UNIQUE, "ix_billed_calls_billed_at"):
        op.execute(f"ALTER INDEX {name} RENAME TO {name}_before")
    op.execute(f"ALTER TABLE {TABLE} RENAME TO {old}")
    _create_table(_request_day(), postgresql_partition_by="RANGE (request_day)")
    op.create_index(UNIQUE, TABLE, ["request_day", "request_id"], unique=True)
    op.execute(KEEP_RIGHTS.format(old=old, new=TABLE))
    op.execute(
        f"ALTER TABLE {TABLE} ATTACH PARTITION {old} FOR VALUES FROM (MINVALUE) TO ({first_day})"
    )
    op.execute(f"ALTER TABLE {old} DROP CONSTRAINT {CHECK}")
    op.execute(REFUSE)
    op.execute(
        f"CREATE TRIGGER refuse_undated_bills BEFORE INSERT ON {old} FOR EACH ROW "
        "WHEN (NEW.request_day = -1) EXECUTE FUNCTION "
        f"refuse_undated_bills({first_day * 86_400 - REFUSED_BEFORE_S})"
    )


def downgrade() -> None:
    """Undo, with all rows: stop the results writers before."""
    op.execute("ALTER INDEX ix_billed_calls_billed_at RENAME TO ix_billed_calls_days_billed_at")
    op.execute(f"ALTER TABLE {TABLE} RENAME TO {TABLE}_days")
    _create_table(sa.PrimaryKeyConstraint("request_id", name=op.f(f"pk_{TABLE}")))
    columns = ", ".join(column.name for column in _columns())
    op.execute(
        f"INSERT INTO {TABLE} ({columns}) SELECT {columns} FROM {TABLE}_days "  # noqa: S608  names
        "ON CONFLICT (request_id) DO NOTHING"
    )
    op.execute(KEEP_RIGHTS.format(old=f"{TABLE}_days", new=TABLE))
    op.drop_table(f"{TABLE}_days")
    op.execute("DROP FUNCTION refuse_undated_bills")


def _create_table(*first: sa.schema.SchemaItem, **options: Any) -> None:
    op.create_table(TABLE, *first, *_columns(), comment=COMMENT, **options)
    op.create_index("ix_billed_calls_billed_at", TABLE, ["billed_at"])


def _request_day() -> sa.Column[int]:
    return sa.Column(
        "request_day",
        sa.Integer(),
        nullable=False,
        server_default="-1",
        comment="days since 1970-01-01 of its arrival; -1: unknown, by a release before 0027",
    )


def _columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("request_id", sa.Uuid(), nullable=False, comment="as `x-request-id`"),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("model_version", sa.Text(), nullable=False),
        sa.Column("outcome", sa.SmallInteger(), nullable=False, comment="core.outcomes.Outcome"),
        sa.Column("input_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("cached_tokens", sa.Integer(), nullable=False),
        sa.Column("reasoning_tokens", sa.Integer(), nullable=False),
        sa.Column(
            "billed_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()
        ),
    ]
