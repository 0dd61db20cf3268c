"""Goal: content of a zero-retention tenant is in its files alone, and nowhere once deleted."""

import json
import secrets
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from openai import BadRequestError
from openai.types import Batch
from typer.testing import CliRunner

from cli.main import app
from core.clock import SystemClock
from core.ids import FILE, JOB, parse_public_id
from core.limits import CHUNK_BYTES_MAX
from core.object_names import job_key_name
from results.retention.batch_removal import BatchDataRemoval
from storage.objects.local_object_store import LocalObjectStore
from tests.support.job_checks import ENDPOINT, create, ended, lines_of, upload, watch
from tests.support.stacks import Stack
from tests.support.stored_content import Found, search, stored_objects

pytestmark = pytest.mark.timeout(300)

SALT = secrets.token_hex(4)
PROMPT, NAME, FILENAME, PLAIN = (
    f"{SALT}-{where}".encode() for where in ("in-a-prompt", "as-an-id", "on-a-file", "plain")
)


def millrace(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout.strip()


def zero_retention_stack(stack: Stack, name: str) -> Stack:
    """The same stack for a tenant with zero retention."""
    data = ("--data", str(stack.data))
    millrace("tenants", "create", name, "--zero-retention", *data)
    for change in ("--no-zero-retention", "--zero-retention"):
        millrace("tenants", "update", name, change, *data)
    key = millrace("keys", "create", "--tenant", name, *data).split()[-1]
    return replace(stack, key=key)


def submit(stack: Stack, texts: list[str], name: str, **fields: Any) -> Batch:
    lines = []
    for number, text in enumerate(texts):
        body = {
            "model": stack.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 20,
            **({"stream": True} if text.endswith("streams") else {}),
        }
        line = {"custom_id": f"{name}-{number}", "method": "POST", "url": ENDPOINT, "body": body}
        lines.append(json.dumps(line).encode() + b"\n")
    file_id = upload(stack.client, b"".join(lines), f"{FILENAME.decode()}.jsonl")
    return create(stack.client, file_id, **fields)


def folders(keys: set[str]) -> set[str]:
    return {key.partition("/")[0] for key in keys}


def assert_readable(stack: Stack, job: Batch, texts: list[str]) -> list[bytes]:
    """The tenant reads everything on every route; returns texts that only the answers have."""
    output = lines_of(stack.client, job.output_file_id)
    errors = lines_of(stack.client, job.error_file_id)
    names = {f"{NAME.decode()}-{number}" for number in range(len(texts))}
    assert {line["custom_id"] for line in output + errors} == names
    texts_of_answers = {
        line["response"]["body"]["choices"][0]["message"]["content"] for line in output
    }
    assert all(text.startswith("Simulated ") for text in texts_of_answers)
    assert len(texts_of_answers) == len({text for text in texts if not text.endswith("streams")})
    lines = stack.request("GET", f"/v1/batches/{job.id}/results").text.splitlines()
    by_name = {line["custom_id"]: line["response"] for line in map(json.loads, lines)}
    assert by_name == {line["custom_id"]: line["response"] for line in output + errors}
    (letter,) = stack.request("GET", f"/v1/dead_letters?batch={job.id}").json()["data"]
    assert (letter["code"], letter["custom_id"]) == ("stream_unsupported", None)
    shown = stack.request("GET", f"/v1/dead_letters/{letter['id']}").json()
    assert shown["response"] == errors[0]["response"]["body"]
    audit = stack.request("GET", f"/v1/batches/{job.id}/audit?log=true").json()
    assert audit["ok"], audit
    return [text[: len("Simulated 00000000.")].encode() for text in texts_of_answers]


def test_deleted_content_is_nowhere(stack: Stack) -> None:
    own = zero_retention_stack(stack, "retains-nothing")
    texts = [f"{PROMPT.decode()} {n % 150}" for n in range(250)]
    texts += [f"{PROMPT.decode()} {'long ' * (CHUNK_BYTES_MAX // 4)}"]
    texts += [f"{PROMPT.decode()} streams"]
    open_job = submit(stack, [PLAIN.decode()], PLAIN.decode())
    job = submit(own, texts, NAME.decode(), deduplicate=True)
    job = watch(own.client, job.id, ended)
    watch(stack.client, open_job.id, ended)
    assert job.status == "completed"
    answers = assert_readable(own, job, texts)

    plain, named, *hidden = search(stack, PLAIN, FILENAME, PROMPT, NAME, *answers[:2])
    assert plain.topics >= {"requests.bulk"}  # the search works
    assert any(table.startswith("items") for table in plain.tables)
    assert named.tables <= {"files", "idempotency_keys"}  # in the upload's response
    for found in hidden:
        assert (found.topics, found.tables) == (set(), set())
        assert folders(found.objects) <= {"files", "results"}
    assert all(found.objects for found in hidden)

    job_id = parse_public_id(JOB, job.id)
    assert job_id is not None
    assert job_key_name(job_id) in dict(stored_objects(stack))
    assert own.request("DELETE", f"/v1/batches/{job.id}").json()["deleted"]
    assert job_key_name(job_id) not in dict(stored_objects(stack))  # at once
    engine = sa.create_engine(stack.state.database_url, poolclass=sa.NullPool)
    store = LocalObjectStore(stack.data / "objects", clock=SystemClock())
    BatchDataRemoval(engine, store).run_once(100_000)  # a finaliser does this within a minute

    assert search(stack, PROMPT, NAME, *answers[:2]) == [Found()] * 4
    with engine.connect() as connection:
        query = "SELECT sum(item_count), sum(output_tokens) FROM usage_ledger WHERE job_id = :job"
        items, tokens = connection.execute(sa.text(query), {"job": job_id}).one()
        query = "SELECT count(*) FROM files WHERE id = :file AND filename <> ''"
        file_id = parse_public_id(FILE, job.input_file_id)
        assert connection.execute(sa.text(query), {"file": file_id}).scalar_one() == 0
    engine.dispose()
    assert items == len(set(texts))
    assert tokens > 0
    assert own.request("GET", f"/v1/batches/{job.id}").status_code == 404


def test_calls_leave_no_readable_content_and_durable_ones_are_refused(stack: Stack) -> None:
    own = zero_retention_stack(stack, "calls-nothing")
    client, word = own.client, f"{SALT}-in-a-call".encode()
    body: Any = {
        "model": stack.model,
        "messages": [{"role": "user", "content": word.decode()}],
        "max_tokens": 20,
    }
    unary = client.chat.completions.create(**body).choices[0].message.content
    assert unary is not None
    assert unary.startswith("Simulated ")
    pieces = client.chat.completions.create(**body, stream=True)
    streamed = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert streamed.startswith("Simulated ")
    long = body | {"messages": [{"role": "user", "content": word.decode() * 60_000}]}
    assert client.chat.completions.create(**long).choices[0].message.content
    with pytest.raises(BadRequestError):
        client.chat.completions.create(**body | {"n": 100_000})
    texts = (word, unary[:19].encode(), streamed[:19].encode())
    assert search(stack, *texts) == [Found()] * 3

    for fields, more in (
        ({}, {"prefer": "wait=5"}),
        ({}, {"idempotency-key": "k"}),
        ({"stream": True}, {"idempotency-key": "k"}),
        ({"background": True}, {}),
    ):
        answer = own.request("POST", ENDPOINT, headers=more, json=body | fields)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "zero_retention")
