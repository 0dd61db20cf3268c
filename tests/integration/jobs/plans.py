"""Query plans for tests of frequent queries, and the number of rows that they read."""

from typing import Any

import sqlalchemy as sa


def plan(connection: sa.Connection, query: sa.SelectBase) -> tuple[str, int]:
    """Return the plan and the total of rows that its leaves read."""
    text = str(query.compile(connection, compile_kwargs={"literal_binds": True}))
    explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {text}"
    found = connection.exec_driver_sql(explain.replace("%", "%%")).scalar_one()
    return str(found), _rows(found[0]["Plan"])


def _rows(node: dict[str, Any]) -> int:
    if "Plans" in node:
        return sum(_rows(child) for child in node["Plans"])
    filtered = int(node.get("Rows Removed by Filter", 0))
    return int((node["Actual Rows"] + filtered) * node["Actual Loops"])
