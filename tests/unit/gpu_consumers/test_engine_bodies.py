"""Goal: an upstream gets what the client wrote for it, and nothing of Millrace, vLLM or storage."""

import json

import msgspec
import pytest

from core.bodies.own_fields import OWN_FIELDS
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.payloads.engine_bodies import VLLM_FIELDS, body_preparation
from tests.unit.batcher.builders import job_ref
from tests.unit.gpu_consumers.replicas import BulkReplica, OnlineReplica, batch_of, call_chunk

JOB = job_ref()
SECRETIVE = msgspec.structs.replace(JOB, key_name="keys/1")
ASKED = {"model": "m", "messages": [{"role": "user", "content": "store cache_salt"}], "n": 1}


def settings(kind: str = "openai_http", **values: str) -> EngineSettings:
    given = {f"MILLRACE_ENGINE_{name.upper()}": value for name, value in values.items()}
    upstream = {"MILLRACE_ENGINE_UPSTREAM": "http://u"} if kind == "openai_http" else {}
    own = {"MILLRACE_ENGINE_KIND": kind, "MILLRACE_ENGINE_MODEL_NAME": "m"}
    return EngineSettings.from_env({**own, **upstream, **given})


def prepared(body: bytes, *, retains_nothing: bool = False, **values: str) -> bytes:
    prepare = body_preparation(settings(**values))
    assert prepare is not None
    return prepare(body, SECRETIVE if retains_nothing else JOB)


@pytest.mark.parametrize("name", [*OWN_FIELDS, *VLLM_FIELDS])
def test_an_upstream_gets_no_field_of_millrace_or_vllm(name: str) -> None:
    body = json.dumps(ASKED | {name: "x"}).encode()
    assert json.loads(prepared(body)) == ASKED
    escaped = body.replace(
        f'"{name}":'.encode(), b'"\\u00%02x%b":' % (ord(name[0]), name[1:].encode())
    )
    assert json.loads(prepared(escaped)) == ASKED


def test_a_vllm_upstream_keeps_the_fields_of_vllm() -> None:
    body = json.dumps(ASKED | {"vllm_xargs": {"a": 1}, "timeout_ms": 5}).encode()
    found = json.loads(prepared(body, upstream_is_vllm="true"))
    assert found.pop("cache_salt")
    assert found == ASKED | {"vllm_xargs": {"a": 1}}


@pytest.mark.parametrize("text", ["true", "null", "1", '"true"', "false"])
def test_no_upstream_stores_what_a_tenant_does_not_retain(text: str) -> None:
    body = b'{"model":"m","store":%b}' % text.encode()
    assert json.loads(prepared(body, retains_nothing=True)) == {"model": "m", "store": False}
    assert prepared(body) == body


def test_the_last_of_two_equal_names_does_not_escape() -> None:
    body = b'{"store":false,"store":true,"cache_salt":"a","cache_salt":"b"}'
    assert json.loads(prepared(body, retains_nothing=True)) == {"store": False}


@pytest.mark.parametrize(
    "body", [json.dumps(ASKED, indent=1).encode(), b"", b"7", b'{"store":', b'[{"store":true}]']
)
def test_other_bodies_are_sent_byte_for_byte(body: bytes) -> None:
    assert prepared(body, retains_nothing=True) == body


def test_the_simulated_engine_gets_bodies_unchanged() -> None:
    assert body_preparation(settings("simulated")) is None


async def test_items_and_calls_are_prepared(bulk: BulkReplica) -> None:
    prepare = body_preparation(settings())
    bulk.execution.prepare_body = prepare
    bulk.start_batch(batch_of(b'{"a":1,"cache_salt":"x"}'))
    await bulk.wait_ended()
    assert bulk.engine.executed == [[b'{"a":1}']]
    online = OnlineReplica()
    online.execution.server._prepare_body = prepare
    chunk = call_chunk()
    item = msgspec.structs.replace(chunk.items[0], body=b'{"a":1,"cache_salt":"x"}')
    await online.complete(msgspec.structs.replace(chunk, items=[item]))
    assert online.engine.served_bodies == [b'{"a":1}']
