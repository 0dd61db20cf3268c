"""Goal: every constraint has a name that a migration can rely on."""

import sqlalchemy as sa

from storage.postgres.metadata import metadata


def test_constraints_are_named_by_the_convention() -> None:
    own = sa.MetaData(naming_convention=metadata.naming_convention)
    sa.Table("parents", own, sa.Column("id", sa.Integer, primary_key=True))
    table = sa.Table(
        "children",
        own,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("parent_id", sa.ForeignKey("parents.id"), index=True),
        sa.Column("name", sa.Text),
        sa.UniqueConstraint("parent_id", "name"),
        sa.CheckConstraint("name <> ''", name="name_given"),
    )
    names = {str(constraint.name) for constraint in table.constraints}
    names |= {str(index.name) for index in table.indexes}
    assert names == {
        "pk_children",
        "fk_children_parent_id_parents",
        "uq_children_parent_id_name",
        "ck_children_name_given",
        "ix_children_parent_id",
    }
