"""Goal: operators change models over the API; every act is conditional where it must be, recorded,
and published.
"""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import msgspec
import pytest
import sqlalchemy as sa

from core.ids import OPERATOR_KEY, TENANT, public_id
from registry.manifests.manifest import ManifestFile
from registry.manifests.model_objects import file_key, manifest_key, signature_key
from registry.unverified_version import unverified_version
from storage.objects.object_store import write_object
from storage.postgres.outbox import outbox
from tests.integration.api.answers import is_replay, newest, ok, refused
from tests.integration.api.every_route.asks import OPERATOR_ASKS
from tests.integration.api.every_route.worlds import Two
from tests.support.lora_adapters import base_weights, write_adapter
from tests.support.registered_models import ModelSigner, manifest_of
from tests.support.signed_models import store_model

pytestmark = pytest.mark.timeout(180)  # the first test starts the whole API

MODELS, ALIASES, KEYS = "/v1/admin/models", "/v1/admin/aliases", "/v1/admin/model_keys"
UNVERIFIED = "/v1/admin/unverified_models"
ANY = {"if-match": "*"}
ACTIONS = {
    ("POST", KEYS): "model_key.added",
    ("POST", MODELS): "model.registered",
    ("POST", UNVERIFIED): "model.registered",
    ("PUT", f"{ALIASES}/{{alias}}"): "model_alias.set",
    ("DELETE", f"{ALIASES}/{{alias}}"): "model_name.removed",
    ("POST", f"{MODELS}/{{name}}/retire"): "model.retired",
    ("DELETE", f"{KEYS}/{{model_key}}"): "model_key.revoked",
}


class Publisher:
    """A key and a model of one file, both of one test alone."""

    def __init__(self, two: Two) -> None:
        self.two, self.signer, self.name = two, ModelSigner(), f"org/{uuid4().hex}"
        self.client = two.asking_operator

    def trust(self, **headers: str) -> httpx.Response:
        body = {"pem": self.signer.key.public.pem.decode(), "name": "release"}
        return self.client.post(KEYS, json=body, headers=headers)

    def store(self, content: str, *, with_file: bool = True, code: bytes = b"") -> str:
        """Store the objects of a version; return the version."""
        manifest = manifest_of(content)
        if code:
            file = ManifestFile("modeling.PY", len(code), sha256(code).hexdigest())
            manifest = msgspec.structs.replace(
                manifest, files=(*manifest.files, file), allows_code=True
            )
            write_object(self.two.site.objects, file_key(file.sha256), code)
        data, bundle = self.signer.sign(manifest)
        version = self.signer.version(manifest)
        objects = self.two.site.objects
        write_object(objects, manifest_key(version), data)
        write_object(objects, signature_key(version, self.signer.key_id), bundle)
        if with_file:
            write_object(objects, file_key(manifest.files[0].sha256), content.encode())
        return version

    def register(self, version: str, **fields: object) -> httpx.Response:
        headers = fields.pop("headers", None)
        body = {
            "name": self.name,
            "version": version,
            "key": self.signer.key_id,
            "pool": "small",
            "endpoints": ["/v1/embeddings"],
        }
        return self.client.post(MODELS, json=body | fields, headers=headers)  # type: ignore[arg-type]

    def push(self, content: str) -> dict[str, Any]:
        """Store and register a version."""
        made: dict[str, Any] = ok(self.register(self.store(content)))
        return made

    def set_alias(self, alias: str, target: str, revision: object = None) -> httpx.Response:
        headers = {} if revision is None else {"if-match": f'"{revision}"'}
        return self.client.put(f"{ALIASES}/{alias}", json={"target": target}, headers=headers)


@pytest.fixture
def publisher(two: Two) -> Publisher:
    publisher = Publisher(two)
    ok(publisher.trust())
    return publisher


def test_every_act_is_recorded_and_published(two: Two) -> None:
    changing = {r for r in OPERATOR_ASKS if r[0] != "GET" and ("model" in r[1] or "alias" in r[1])}
    assert changing == ACTIONS.keys()
    publisher, client = Publisher(two), two.asking_operator
    old, new = publisher.store("old"), publisher.store("new")
    alias = f"org/{uuid4().hex}"

    def published() -> int:
        with two.site.engine.connect() as connection:
            query = sa.select(sa.func.count()).where(outbox.c.topic == "models")
            return connection.scalar(query) or 0

    served = {"name": f"org/{uuid4().hex}", "engine": "simulated", "endpoints": ["/v1/embeddings"]}
    digest = unverified_version("simulated", "", {})
    acts: list[tuple[tuple[str, str], Callable[[], httpx.Response], str, int]] = [
        (("POST", KEYS), publisher.trust, publisher.signer.key_id, 1),
        (("POST", MODELS), lambda: publisher.register(old), f"{publisher.name}@{old}", 1),
        (("POST", MODELS), lambda: publisher.register(new), f"{publisher.name}@{new}", 1),
        (
            ("POST", UNVERIFIED),
            lambda: client.post(UNVERIFIED, json=served),
            f"{served['name']}@{digest}",
            0,
        ),
        (
            ("PUT", f"{ALIASES}/{{alias}}"),
            lambda: publisher.set_alias(alias, publisher.name),
            alias,
            0,
        ),
        (
            ("DELETE", f"{ALIASES}/{{alias}}"),
            lambda: client.delete(f"{ALIASES}/{alias}", headers=ANY),
            alias,
            0,
        ),
        (
            ("POST", f"{MODELS}/{{name}}/retire"),
            lambda: client.post(f"{MODELS}/{publisher.name}@{old[:12]}/retire", json={}),
            f"{publisher.name}@{old}",
            1,
        ),
        (
            ("DELETE", f"{KEYS}/{{model_key}}"),
            lambda: client.delete(f"{KEYS}/{publisher.signer.key_id}"),
            publisher.signer.key_id,
            1,
        ),
    ]
    assert {route for route, *_ in acts} == ACTIONS.keys()
    for route, act, subject, state_count in acts:
        before, states = newest(client)["sequence"], published()
        answer = act()
        ok(answer)
        row = newest(client)
        assert (row["sequence"], row["action"]) == (before + 1, ACTIONS[route]), row
        assert row["subject"] == subject
        assert row["actor"] == public_id(OPERATOR_KEY, two.operator.key_id)
        assert row["details"]["request_id"] == answer.headers["x-request-id"]
        assert published() == states + state_count


def test_a_version_is_registered_once_its_objects_are_stored(publisher: Publisher) -> None:
    for version in ("0" * 64, "x", "", "../" * 20):
        error = refused(publisher.register(version), 400)
        assert error["code"] == "model_objects_missing"
    version = publisher.store(uuid4().hex, with_file=False)
    assert refused(publisher.register(version), 400)["code"] == "model_objects_missing"
    assert publisher.client.get(f"{MODELS}/{publisher.name}").status_code == 404

    content = uuid4().hex
    made = publisher.push(content)
    digest = made["version"]
    assert made == {
        "id": f"{publisher.name}@{digest}",
        "object": "model_version",
        "name": publisher.name,
        "created_at": made["created_at"],
        "version": digest,
        "pool": "small",
        "engine": "vllm",
        "endpoints": ["/v1/embeddings"],
        "verification": "signed",
        "base_version": None,
        "tenant_id": None,
        "retired_at": None,
    }
    shown = ok(publisher.client.get(f"{MODELS}/{publisher.name}@{digest[:12]}"))
    assert {name: shown[name] for name in made} == made
    assert shown["names"] == [publisher.name]
    assert (shown["manifest"]["file_count"], shown["manifest"]["total_bytes"]) == (1, 32)
    assert [one["key"] for one in shown["signatures"]] == [publisher.signer.key_id]
    assert ok(publisher.client.get(f"{MODELS}/{publisher.name}")) == shown


def test_what_is_stored_and_not_signed_is_refused(publisher: Publisher) -> None:
    version = publisher.store(uuid4().hex)
    objects, key_id = publisher.two.site.objects, publisher.signer.key_id
    _, bundle = publisher.signer.sign(manifest_of("other"))
    write_object(objects, signature_key(version, key_id), bundle)
    assert refused(publisher.register(version), 400)["code"] == "model_signature_invalid"
    write_object(objects, manifest_key(version), b"{}")
    assert refused(publisher.register(version), 400)["code"] == "model_objects_missing"
    stranger = Publisher(publisher.two)
    unknown = stranger.register(stranger.store(uuid4().hex))
    assert refused(unknown, 400)["code"] == "model_signature_invalid"


def test_code_is_registered_when_the_request_allows_it(publisher: Publisher) -> None:
    version = publisher.store(uuid4().hex, code=uuid4().bytes)
    for fields in ({}, {"allow_code": False}):
        error = refused(publisher.register(version, **fields), 400)
        assert error["code"] == "model_code_not_allowed"
    assert publisher.client.get(f"{MODELS}/{publisher.name}").status_code == 404
    made = ok(publisher.register(version, allow_code=True))
    row = newest(publisher.client)
    assert (row["subject"], row["details"]["allowed_code_files"]) == (made["id"], 1)


def test_posts_are_executed_once(two: Two) -> None:
    publisher, client = Publisher(two), two.asking_operator
    key = {"idempotency-key": uuid4().hex}
    first, second = publisher.trust(**key), publisher.trust(**key)
    version = publisher.store(uuid4().hex)
    pairs = [(first, second)]
    key = {"idempotency-key": uuid4().hex}
    pairs.append(
        (publisher.register(version, headers=key), publisher.register(version, headers=key))
    )
    publisher.push(uuid4().hex)
    path = f"{MODELS}/{publisher.name}@{version}/retire"
    retired = [client.post(path, json={}, headers={"idempotency-key": "r" + version}) for _ in "12"]
    pairs.append((retired[0], retired[1]))
    for one, other in pairs:
        assert ok(one) == ok(other)
        assert (is_replay(one), is_replay(other)) == (False, True)
    for url in (KEYS, MODELS, path):
        answer = client.post(url, json={}, headers={"idempotency-key": ""})
        assert refused(answer, 400)["code"] == "idempotency_key_invalid"


def test_an_alias_is_changed_at_the_revision_that_was_read(publisher: Publisher) -> None:
    client, alias = publisher.client, f"org/{uuid4().hex}"
    url = f"{ALIASES}/{alias}"
    first = publisher.push(uuid4().hex)
    assert refused(publisher.set_alias(alias, publisher.name, 1), 412)["code"]
    made = publisher.set_alias(alias, publisher.name)
    read = client.get(url)
    assert ok(read) == ok(made)
    assert read.headers["etag"] == made.headers["etag"] == f'"{ok(made)["revision"]}"'
    assert ok(made)["model_version"] == first["id"]
    assert ok(publisher.set_alias(alias, publisher.name)) == ok(made)  # means that already

    error = refused(publisher.set_alias(alias, first["id"]), 428)
    assert error["code"] == "if_match_required"
    changed = publisher.set_alias(alias, first["id"], ok(made)["revision"])
    assert ok(changed)["target"] == first["id"]
    assert [one["target"] for one in ok(changed)["history"]] == [first["id"], publisher.name]
    stale = publisher.set_alias(alias, publisher.name, ok(made)["revision"])
    assert refused(stale, 412)["code"] == "revision_mismatch"
    assert refused(client.delete(url, headers={"if-match": made.headers["etag"]}), 412)
    assert refused(client.delete(url, headers={"if-match": "anything"}), 412)
    anything = client.put(url, json={"target": publisher.name}, headers={"if-match": "*"})
    assert ok(anything)["target"] == publisher.name
    listed = ok(client.get(ALIASES, params={"limit": 100}))["data"]
    assert {**ok(anything), "history": []} in listed

    assert refused(client.delete(url), 428)["code"] == "if_match_required"
    current = {"if-match": f'"{ok(anything)["revision"]}"'}
    removed = ok(client.delete(url, headers=current))
    assert removed == {"id": alias, "object": "model_alias", "deleted": True}
    assert refused(client.delete(url, headers=ANY), 404)["code"] == "model_not_found"
    assert refused(client.get(url), 404)["code"] == "model_not_found"
    assert ok(publisher.set_alias(alias, publisher.name))["history"][1]["target"] is None


def test_what_is_in_use_is_not_retired(publisher: Publisher) -> None:
    client = publisher.client
    made = publisher.push(uuid4().hex)
    path = f"{MODELS}/{made['id']}/retire"
    assert refused(client.post(path, json={"force": True}), 409)["code"] == "model_in_use"
    ok(client.delete(f"{ALIASES}/{publisher.name}", headers=ANY))
    retired = ok(client.post(path, json={}))
    assert retired["retired_at"] is not None
    assert refused(publisher.register(made["version"]), 409)["code"] == "model_retired"
    listed = ok(client.get(MODELS, params={"name": publisher.name, "retired": True}))["data"]
    assert listed == [retired]
    assert ok(client.get(MODELS, params={"name": publisher.name, "all": True}))["data"] == listed
    filters: list[dict[str, Any]] = [
        {"retired": False},
        {},
        {"all": True, "verification": "legacy"},
    ]
    for hidden in filters:
        assert ok(client.get(MODELS, params={"name": publisher.name, **hidden}))["data"] == []


def test_versions_are_listed_page_by_page(publisher: Publisher) -> None:
    ids = sorted(publisher.push(uuid4().hex)["id"] for _ in range(3))
    parameters: dict[str, Any] = {"name": publisher.name, "all": True, "limit": 2}
    page = ok(publisher.client.get(MODELS, params=parameters))
    assert ([one["id"] for one in page["data"]], page["has_more"]) == (ids[:2], True)
    behind = publisher.client.get(MODELS, params=parameters | {"after": page["last_id"]})
    assert [one["id"] for one in ok(behind)["data"]] == ids[2:]


def test_two_versions_are_compared(publisher: Publisher, two: Two) -> None:
    old, new = publisher.push("old"), publisher.push("new content")
    parameters = {"old": old["id"], "new": publisher.name}
    diff = ok(publisher.client.get("/v1/admin/model_diff", params=parameters))
    assert (diff["old"], diff["new"], diff["change_count"]) == (old["id"], new["id"], 1)
    assert diff["changes"][0]["field"] == "files/model.safetensors"
    legacy = publisher.client.get("/v1/admin/model_diff", params=parameters | {"old": "org/small"})
    assert refused(legacy, 400)["code"] == "model_refused"
    short = publisher.client.get(f"{MODELS}/{old['id'][:-60]}")
    assert refused(short, 400)["code"] == "model_version_ambiguous"


def store_adapter(
    publisher: Publisher, folder: Path, *, hidden: int = 128
) -> tuple[dict[str, Any], str]:
    """Register a base model and store an adapter of it; return the base and the version."""
    key, objects = publisher.signer.key, publisher.two.site.objects
    name = uuid4().hex
    weights = {"model.safetensors": base_weights(hidden=hidden), f"{name}.json": b"{}"}
    base = ok(publisher.register(store_model(objects, weights, key).version))
    write_adapter(folder / name, 1)
    files = {path.name: path.read_bytes() for path in (folder / name).iterdir()}
    return base, store_model(objects, files, key, base=base["version"]).version


def test_an_adapter_that_does_not_fit_its_base_is_refused(
    publisher: Publisher, two: Two, tmp_path: Path
) -> None:
    adapter = Publisher(two)
    adapter.signer = publisher.signer
    _, version = store_adapter(publisher, tmp_path, hidden=64)
    answer = refused(adapter.register(version, pool=None, endpoints=[]), 400)
    assert answer["code"] == "adapter_invalid"
    assert "do not fit those of the base model" in str(answer["message"])


def test_a_private_adapter_is_shown_to_its_tenant(
    publisher: Publisher, two: Two, tmp_path: Path
) -> None:
    adapter = Publisher(two)
    adapter.signer = publisher.signer
    base, version = store_adapter(publisher, tmp_path)
    tenant = public_id(TENANT, two.site.tenant_id)
    other = adapter.register(version, pool=None, endpoints=[], tenant="org_x")
    assert refused(other, 404)["code"] == "tenant_missing"
    made = ok(adapter.register(version, pool=None, endpoints=[], tenant=tenant))
    assert (made["tenant_id"], made["pool"], made["endpoints"]) == (
        tenant,
        "small",
        ["/v1/embeddings"],
    )
    shown = ok(two.asking_owner.get(f"/v1/models/{adapter.name}"))
    assert shown["millrace"]["base"] == base["version"]
    assert shown["millrace"]["verification"] == "signed"
    for text in (adapter.name, made["id"]):
        refused(two.asking_stranger.get(f"/v1/models/{text}"), 404)
        ok(two.asking_owner.get(f"/v1/models/{text}"))
    names = [
        [one["id"] for one in ok(client.get("/v1/models"))["data"]]
        for client in (two.asking_owner, two.asking_stranger)
    ]
    assert [adapter.name in of_tenant for of_tenant in names] == [True, False]
    assert "org/alias" in names[1]
    row = ok(two.asking_owner.get("/v1/audit_log?limit=1"))["data"][0]
    assert (row["action"], row["subject"]) == ("model.registered", made["id"])


def test_a_revoked_key_stays_revoked(publisher: Publisher) -> None:
    url = f"{KEYS}/{publisher.signer.key_id}"
    revoked = ok(publisher.client.delete(url))
    assert revoked["revoked_at"] is not None
    assert ok(publisher.client.delete(url)) == revoked
    assert refused(publisher.trust(), 409)["code"] == "model_key_revoked"
    listed = ok(publisher.client.get(KEYS, params={"limit": 100}))["data"]
    assert revoked in listed
    refusal = refused(publisher.register(publisher.store(uuid4().hex)), 400)
    assert refusal["code"] == "model_signature_invalid"
    private = publisher.client.post(
        KEYS, json={"pem": publisher.signer.key.pem().decode(), "name": "x"}
    )
    assert refused(private, 400)["code"] == "key_refused"
