"""Keep an audit log: rows that nobody changes, in a chain for each tenant."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

HEAD_MOVES_ON = """
CREATE FUNCTION audit_head_moves_on() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.tenant_id <> OLD.tenant_id OR NEW.sequence <> OLD.sequence + 1 THEN
        RAISE EXCEPTION 'a head of the audit log moves on by one'
            USING ERRCODE = 'check_violation', CONSTRAINT = 'ck_append_only';
    END IF;
    RETURN NEW;
END $$;
"""


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "audit_log",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column(
            "sequence", sa.BigInteger(), nullable=False, comment="in the tenant's chain, from 1"
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False, comment="a key's id, or cli"),
        sa.Column("action", sa.Text(), nullable=False, comment="tenancy.audit_log.Action"),
        sa.Column("subject", sa.Text(), nullable=False, comment="the id of what it was done to"),
        sa.Column("details", postgresql.JSONB(), nullable=False),
        sa.Column("previous_hash", sa.LargeBinary(), nullable=False),
        sa.Column(
            "hash",
            sa.LargeBinary(),
            nullable=False,
            comment="SHA-256 over this row and the hash before",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_log")),
        comment="Append-only: what was done, by whom and when; names nothing that a user wrote",
    )
    op.create_index(
        "uq_audit_log_tenant_id_sequence", "audit_log", ["tenant_id", "sequence"], unique=True
    )
    op.create_table(
        "audit_heads",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column(
            "sequence", sa.BigInteger(), nullable=False, comment="of the last row; 0: none yet"
        ),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_audit_heads")),
        comment="The end of each tenant's chain in audit_log; it only ever moves on by one",
    )
    op.execute(
        "CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )
    op.execute(
        "CREATE TRIGGER append_only BEFORE DELETE OR TRUNCATE ON audit_heads "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )
    op.execute(HEAD_MOVES_ON)
    op.execute(
        "CREATE TRIGGER moves_on BEFORE UPDATE ON audit_heads "
        "FOR EACH ROW EXECUTE FUNCTION audit_head_moves_on()"
    )


def downgrade() -> None:
    """Undo."""
    op.drop_table("audit_heads")
    op.drop_table("audit_log")
    op.execute("DROP FUNCTION audit_head_moves_on()")
