"""Goal: a job is followed on a complete stack, its items have a status, and its audit passes."""

import json
import threading
from collections import Counter
from typing import Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from cli.exits import ExitCode
from cli.main import app
from core.ids import JOB, parse_public_id
from storage.postgres.items import items
from tests.e2e.test_cli_batch import lines, millrace, submitted
from tests.support.stacks import Stack
from tests.support.until import until

pytestmark = pytest.mark.timeout(400)
COUNT = 4000


def get(stack: Stack, path: str, **params: str) -> Any:
    return stack.request("GET", f"/v1{path}", params=params).raise_for_status().json()


def test_a_job_is_followed_item_by_item(stack: Stack, env: dict[str, str]) -> None:
    job = submitted(env, lines(stack.model, 3 * COUNT))  # a few seconds of work
    streamed: list[dict[str, Any]] = []
    codes: list[int] = []

    def follow() -> None:
        answer = millrace(env, "stream", job)
        streamed.extend(json.loads(line) for line in answer.stdout_bytes.splitlines())
        codes.append(answer.exit_code)

    thread = threading.Thread(target=follow)
    thread.start()
    seen: Counter[str] = Counter()
    workers: set[str] = set()

    def poll() -> bool:
        for status in ("pending", "queued", "dispatched", "succeeded"):
            page = get(stack, f"/batches/{job}/items", status=status, limit="100")
            assert {item["status"] for item in page["data"]} <= {status}
            seen[status] += len(page["data"])
            workers.update(item["worker"] for item in page["data"] if item["worker"])
        audit = get(stack, f"/batches/{job}/audit", log=str(bool(workers)).lower())
        assert audit["ok"], audit
        return bool(audit["is_settled"])

    def is_running() -> bool:
        page = get(stack, f"/batches/{job}/items", status="dispatched", limit="100")
        workers.update(item["worker"] for item in page["data"] if item["worker"])
        return bool(workers)

    until(is_running, "an item runs", 60)
    until(poll, "the job settles", 90)
    thread.join(60)
    assert not thread.is_alive()

    assert codes == [ExitCode.OK]
    assert [line["sequence"] for line in streamed] == list(range(1, 3 * COUNT + 1))
    assert len({line["custom_id"] for line in streamed}) == 3 * COUNT
    assert seen["succeeded"] > 0
    one = get(stack, f"/batches/{job}/items/item-77")
    line = streamed[one["sequence"] - 1]
    assert (line["custom_id"], line["id"]) == ("item-77", one["id"])
    audit = millrace(env, "audit", job, "--log")
    assert audit.exit_code == ExitCode.OK, audit.output
    listed = millrace(env, "items", job, "--item", "item-77")
    assert "succeeded" in listed.stdout


def test_projections_are_rebuilt_from_the_log(stack: Stack, env: dict[str, str]) -> None:
    job = submitted(env, lines(stack.model, 300), "--wait")
    job_id = parse_public_id(JOB, job)
    engine = sa.create_engine(stack.state.database_url, poolclass=sa.NullPool)

    def rebuild(*options: str) -> tuple[int, dict[str, Any]]:
        arguments = ["rebuild", job, "--data", str(stack.data), "-o", "json", *options]
        answer = CliRunner().invoke(app, arguments)
        (found,) = json.loads(answer.stdout)
        return answer.exit_code, found

    assert rebuild()[1]["verdict"] == "same"
    with engine.begin() as connection:
        connection.execute(
            sa.delete(items).where(items.c.job_id == job_id, items.c.item_index < 10)
        )
    assert millrace(env, "audit", job).exit_code == ExitCode.FAILED
    code, found = rebuild()
    assert (code, found["verdict"], found["rows_missing"]) == (ExitCode.FAILED, "differs", 10)
    assert rebuild("--apply")[1]["verdict"] == "swapped"
    assert rebuild()[1]["verdict"] == "same"
    assert millrace(env, "audit", job, "--log").exit_code == ExitCode.OK
