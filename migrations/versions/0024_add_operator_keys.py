"""Add operator keys, and let them own idempotency keys as tenants do.

An idempotency key of an operator names the operator key where it names a tenant otherwise, so the
foreign key ends. Releases before write only tenants there.
"""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

TENANT_OF_KEY = "fk_idempotency_keys_tenant_id_tenants"
OWNER = "or the operator key that asked"


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "operator_keys",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False, comment="tenancy.operator_keys.OperatorRole"),
        sa.Column(
            "secret_sha256",
            sa.LargeBinary(),
            nullable=False,
            comment="SHA-256 of 256 random bits: enough to need no slow hash",
        ),
        sa.Column("hint", sa.Text(), nullable=False, comment="last characters, to tell keys apart"),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("revoked_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_operator_keys")),
        sa.UniqueConstraint("secret_sha256", name=op.f("uq_operator_keys_secret_sha256")),
        comment="Keys of the installation; no tenant's role may read this table",
    )
    op.drop_constraint(TENANT_OF_KEY, "idempotency_keys", type_="foreignkey")
    op.alter_column("idempotency_keys", "tenant_id", comment=OWNER)


def downgrade() -> None:
    """Undo. Answers to operators are forgotten."""
    op.execute("DELETE FROM idempotency_keys WHERE tenant_id NOT IN (SELECT id FROM tenants)")
    op.alter_column("idempotency_keys", "tenant_id", comment=None, existing_comment=OWNER)
    op.create_foreign_key(TENANT_OF_KEY, "idempotency_keys", "tenants", ["tenant_id"], ["id"])
    op.drop_table("operator_keys")
