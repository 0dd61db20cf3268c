"""Writes results to rows, then rows to a file: `… .store SERVERS RUN ITEMS DATABASE_URL OUTPUT`."""

import sys

import psycopg

from benchmarks.children.line_child import die_with_parent, report_line, wait_for_line
from benchmarks.throwaway.wire import RESULTS, decode_results, encode, subscribe

_RECORDS = 20
_ROWS = 5000
_LINES = 2000

TABLE = """
CREATE TABLE IF NOT EXISTS results (run text, item_index int, custom_id text, status_code smallint,
    body bytea, input_tokens int, output_tokens int, PRIMARY KEY (run, item_index))
"""
_INSERT = """
INSERT INTO results SELECT %s, * FROM unnest(%b::int[], %b::text[], %b::smallint[], %b::bytea[],
    %b::int[], %b::int[]) ON CONFLICT DO NOTHING
"""
_READ = """
SELECT item_index, custom_id, status_code, body FROM results WHERE run = %s ORDER BY item_index
"""
_LINE = (
    b'{"id":"batch_req_%d","custom_id":%b,"response":{"status_code":%d,"request_id":"req_%d",'
    b'"body":%b},"error":null}\n'
)


def main(servers: str, run: str, items: str, database_url: str, path: str) -> None:
    """Store until every item has a row, then write the file."""
    connection, count = psycopg.connect(database_url), 0
    consumer = subscribe(servers, f"store{run}", RESULTS + run)
    while count < int(items):
        records = consumer.consume(_RECORDS, 0.2)
        rows = [row for record in records for row in decode_results(record.value())]
        if rows:
            columns = [
                [row.index for row in rows],
                [row.custom_id for row in rows],
                [row.status_code for row in rows],
                [bytes(row.body) for row in rows],
                [row.input_tokens for row in rows],
                [row.output_tokens for row in rows],
            ]
            connection.execute(_INSERT, (run, *columns))
            connection.commit()
            count += len(rows)
    write_file(connection, run, path)
    report_line("done")
    wait_for_line()


def write_file(connection: psycopg.Connection, run: str, path: str) -> None:
    """Write the rows in index order."""
    lines: list[bytes] = []
    with (
        open(path, "wb") as file,  # noqa: PTH123
        connection.cursor("rows", binary=True) as cursor,
    ):
        cursor.itersize = _ROWS
        cursor.execute(_READ, (run,))
        for index, custom_id, status_code, body in cursor:
            lines.append(_LINE % (index, encode(custom_id), status_code, index, body))
            if len(lines) == _LINES:
                file.writelines(lines)
                lines.clear()
        file.writelines(lines)


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
