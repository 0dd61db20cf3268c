"""Goal: no tenant's request has the salt of another tenant, whatever its body says."""

import base64
import json
from uuid import UUID

import pytest

from core.errors import SettingsError
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.payloads.cache_salts import PrefixCacheSalts, prefix_cache_salts
from tests.unit.gpu_consumers.replicas import BulkReplica, batch_of

KEY = b"k" * 32
ONE, TWO, THREE = (UUID(int=number) for number in (1, 2, 3))
SALTS = PrefixCacheSalts(KEY, {TWO: "group", THREE: "group"})
OPENAI_HTTP = {"MILLRACE_ENGINE_KIND": "openai_http", "MILLRACE_ENGINE_UPSTREAM": "http://u"}


def salted(body: bytes, tenant: UUID = ONE) -> dict[str, object]:
    fields: dict[str, object] = json.loads(SALTS.add_salt(body, tenant))
    return fields


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b" { } ",
        b'{"a":1}',
        b'{"a": {"b": "}"} }\n',
        b'{"a":"cache_salt"}',
        b'{"a":"\\u0063ache_salt"}',
        b'{"a":{"cache_salt":"x"}}',
        b'{"a":1,"cache_salt":null}',
    ],
)
def test_a_body_gets_the_salt_of_its_tenant_and_keeps_its_fields(body: bytes) -> None:
    assert salted(body) == json.loads(body) | {"cache_salt": SALTS.salt(ONE)}


@pytest.mark.parametrize("name", ["cache_salt", "cache_s\\u0061lt"])
def test_the_salt_of_a_request_divides_the_cache_of_its_tenant_only(name: str) -> None:
    body = b'{"a":1,"%b":"%b"}' % (name.encode(), SALTS.salt(TWO).encode())
    assert salted(body) == {"a": 1, "cache_salt": SALTS.salt(ONE, SALTS.salt(TWO))}
    assert len({SALTS.salt(ONE), SALTS.salt(ONE, "x"), SALTS.salt(ONE, "y")}) == 3


def test_only_the_tenants_of_a_group_share_a_salt() -> None:
    assert SALTS.salt(TWO) == SALTS.salt(THREE) != SALTS.salt(ONE)
    assert SALTS.salt(ONE) != PrefixCacheSalts(b"l" * 32, {}).salt(ONE)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"7", b"[1]", b"{", b'[{"a":1}]', b'{"cache_salt":'),
        *(b'{"cache_salt":7}', b'{"cache_salt":""}', b'{"cache_salt":"a/b"}'),
        b'{"cache_salt":"%b"}' % (b"x" * 129),
        b'{"cache_salt":"a","b":%b}' % (b"[" * 9000 + b"]" * 9000),
    ],
)
def test_a_body_that_vllm_refuses_is_unchanged(body: bytes) -> None:
    assert SALTS.add_salt(body, ONE) == body


@pytest.mark.parametrize(
    "body", [b'{"a":1}}', b'{"a":{"b":1}', b'{"a":1,}', b'{"a":1}x', b'{"a":1\x0b}']
)
def test_invalid_json_stays_invalid(body: bytes) -> None:
    with pytest.raises(json.JSONDecodeError):
        json.loads(SALTS.add_salt(body, ONE))


async def test_the_items_of_a_batch_carry_the_salt_of_their_tenant(bulk: BulkReplica) -> None:
    bulk.execution.prepare_body = lambda body, job: SALTS.add_salt(body, job.tenant_id)
    batch = batch_of(b'{"a":1}', b"{}")
    bulk.start_batch(batch)
    await bulk.wait_ended()
    salt = SALTS.salt(batch.parts[0].job.tenant_id)
    [bodies] = bulk.engine.executed
    assert [json.loads(body) for body in bodies] == [
        {"a": 1, "cache_salt": salt},
        {"cache_salt": salt},
    ]


def settings(**values: str) -> EngineSettings:
    given = {f"MILLRACE_ENGINE_{name.upper()}": value for name, value in values.items()}
    return EngineSettings.from_env({**OPENAI_HTTP, "MILLRACE_ENGINE_MODEL_NAME": "m", **given})


def test_an_upstream_gets_salts_when_it_is_vllm() -> None:
    assert prefix_cache_salts(settings()) is None
    random = [prefix_cache_salts(settings(upstream_is_vllm="true")) for _ in range(2)]
    assert len({salts.salt(ONE) for salts in random if salts}) == 2
    given = settings(
        upstream_is_vllm="true",
        cache_salt_key=base64.b64encode(KEY).decode(),
        cache_salt_groups=f'[["{ONE}","{TWO}"]]',
    )
    salts = prefix_cache_salts(given)
    assert salts
    assert salts.salt(ONE) == salts.salt(TWO) != salts.salt(THREE)
    assert salts.salt(THREE) == PrefixCacheSalts(KEY, {}).salt(THREE)


@pytest.mark.parametrize(
    "values",
    [
        {"cache_salt_key": base64.b64encode(KEY).decode()},
        {"cache_salt_groups": f'[["{ONE}"]]'},
        {"upstream_is_vllm": "true", "cache_salt_key": "short"},
        {"upstream_is_vllm": "true", "cache_salt_groups": f'[["{ONE}","{TWO}"],["{TWO}"]]'},
    ],
)
def test_settings_that_would_have_no_effect_or_two_meanings_are_refused(
    values: dict[str, str],
) -> None:
    with pytest.raises(SettingsError, match=r"(?i)cache_salt"):
        settings(**values)
