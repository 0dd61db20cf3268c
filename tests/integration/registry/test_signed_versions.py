"""Goal: a signed version is registered only with a signature of all it is, by a trusted key."""

from dataclasses import replace
from uuid import uuid4

import pytest
import sqlalchemy as sa

from registry.errors import (
    InvalidModelError,
    ModelRetiredError,
    ModelVersionConflictError,
    NameTakenError,
)
from registry.manifests.manifest import InvalidManifestError, encode_manifest, version_of
from registry.models import ModelVersion, add_model, find_model, list_versions
from registry.signing.model_signature import InvalidSignatureError, sign_files
from registry.store.aliases import remove_name, set_alias
from registry.store.keys import revoke_key
from registry.store.registration import register_signed_version, register_unverified
from registry.store.retirement import retire
from registry.tables import model_manifests, model_names, model_signatures
from tests.integration.registry.outbox_states import published
from tests.support.registered_models import EMBEDDINGS, ModelSigner, manifest_of
from topics.records.model_states import ModelState


def register(
    connection: sa.Connection, signer: ModelSigner, data: bytes, bundle: bytes
) -> ModelVersion:
    return register_signed_version(
        connection,
        name="m",
        manifest_bytes=data,
        bundle=bundle,
        key_id=signer.key_id,
        pool="p",
        endpoints=EMBEDDINGS,
    )


def count(connection: sa.Connection, table: sa.Table) -> int:
    return connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0


def test_a_signed_version_serves_its_name(connection: sa.Connection, signer: ModelSigner) -> None:
    data, bundle = signer.sign(manifest_of())
    registered = register(connection, signer, data, bundle)

    assert registered.version == version_of(data)
    assert (registered.engine, registered.verification) == ("vllm", "signed")
    assert find_model(connection, "m") == registered
    assert connection.scalar(sa.select(model_manifests.c.manifest)) == data
    assert connection.scalar(sa.select(model_signatures.c.bundle)) == bundle
    assert published(connection)[-1] == (
        f"version:m@{registered.version}",
        ModelState("m", registered.version, "p", revision=1),
    )


def test_pushing_a_version_again_only_makes_it_the_meaning_of_its_name(
    connection: sa.Connection, signer: ModelSigner
) -> None:
    first = signer.register(connection, "m", "one")
    assert signer.register(connection, "m", "one") == first
    assert count(connection, model_names) == 1
    second = signer.register(connection, "m", "two")
    assert find_model(connection, "m") == second

    assert signer.register(connection, "m", "one") == first
    assert find_model(connection, "m") == first
    assert len(list_versions(connection)) == 2
    with pytest.raises(ModelVersionConflictError):
        signer.register(connection, "m", "one", pool="other")


def test_another_key_may_sign_the_same_version(
    connection: sa.Connection, signer: ModelSigner
) -> None:
    other = ModelSigner()
    other.trust(connection, "second")
    assert signer.register(connection, "m") == other.register(connection, "m")
    assert count(connection, model_signatures) == 2


def test_a_signature_of_less_than_the_version_is_refused(
    connection: sa.Connection, signer: ModelSigner
) -> None:
    manifest = manifest_of()
    data, bundle = signer.sign(manifest)
    other_options = encode_manifest(manifest_of(engine_options={"max_model_len": 512}))
    stranger = ModelSigner()
    for given, refused in (
        (data, sign_files(signer.key, "m", manifest.files)),  # files alone
        (other_options, bundle),  # another version of the same files
        (encode_manifest(manifest_of("other files")), bundle),
        (data, stranger.sign(manifest)[1]),
    ):
        with pytest.raises(InvalidSignatureError):
            register(connection, signer, given, refused)
    with pytest.raises(InvalidSignatureError, match="not among"):
        register(connection, stranger, *stranger.sign(manifest))
    with pytest.raises(InvalidManifestError, match="canonical"):
        register(connection, signer, data + b" ", bundle)
    assert list_versions(connection) == []
    assert count(connection, model_manifests) == 0


def test_a_revoked_key_registers_nothing(connection: sa.Connection, signer: ModelSigner) -> None:
    signer.register(connection, "m")
    revoke_key(connection, signer.key_id)
    for content in ("weights", "new weights"):
        with pytest.raises(InvalidSignatureError, match="revoked"):
            signer.register(connection, "m", content)


def test_an_adapter_has_pool_and_endpoints_of_its_base(
    connection: sa.Connection, signer: ModelSigner
) -> None:
    base = signer.register(connection, "base", pool="large")
    adapter = signer.register(
        connection, "adapter", "lora", base=base.version, pool=None, endpoints=()
    )

    assert (adapter.pool, adapter.endpoints) == ("large", EMBEDDINGS)
    assert adapter.base_version == base.version
    state = ModelState("adapter", adapter.version, "large", 1, base_version=base.version)
    assert published(connection)[-1][1] == state
    with pytest.raises(InvalidModelError, match="large"):
        signer.register(connection, "adapter", "lora", base=base.version, pool="other")
    with pytest.raises(InvalidModelError, match="not registered"):
        signer.register(connection, "adapter", "lora", base="0" * 64)
    with pytest.raises(InvalidModelError, match="not registered"):  # an adapter of an adapter
        signer.register(connection, "adapter", "lora 2", base=adapter.version)


def test_an_adapter_of_a_retired_base_is_refused(
    connection: sa.Connection, signer: ModelSigner
) -> None:
    base = signer.register(connection, "base")
    remove_name(connection, "base")
    retire(connection, base.id, count_jobs=lambda *_: 0)
    with pytest.raises(ModelRetiredError):
        signer.register(connection, "adapter", "lora", base=base.version)
    with pytest.raises(ModelRetiredError):
        signer.register(connection, "base")


def test_only_an_adapter_is_private(connection: sa.Connection, signer: ModelSigner) -> None:
    with pytest.raises(InvalidModelError, match="private"):
        signer.register(connection, "m", tenant_id=uuid4())


def test_a_name_is_not_taken_from_its_owner(connection: sa.Connection, signer: ModelSigner) -> None:
    base = signer.register(connection, "base")
    mine, yours = uuid4(), uuid4()
    signer.register(connection, "adapter", "1", base=base.version, tenant_id=mine)
    for owner in (yours, None):
        with pytest.raises(NameTakenError):
            signer.register(connection, "adapter", "2", base=base.version, tenant_id=owner)
    set_alias(connection, "alias", "base")
    with pytest.raises(NameTakenError, match="alias"):
        signer.register(connection, "alias")


@pytest.mark.parametrize("name", ["", "a@b", "a b", "ü", "\x00", "x" * 257])
def test_new_names_hold_no_at_sign(
    connection: sa.Connection, signer: ModelSigner, name: str
) -> None:
    with pytest.raises(InvalidModelError):
        signer.register(connection, name)
    with pytest.raises(InvalidModelError):
        set_alias(connection, name, "m")


def test_an_unverified_model_has_the_digest_of_what_is_known(connection: sa.Connection) -> None:
    def add(engine: str = "openai_http", **options: object) -> ModelVersion:
        return register_unverified(
            connection,
            name="remote",
            engine=engine,
            url="http://upstream",
            options=options,
            pool="p",
            endpoints=EMBEDDINGS,
        )

    first = add(a=1, b=2)
    assert first == add(b=2, a=1)
    assert (len(first.version), first.verification) == (64, "unverified")
    assert add(a=2).version != first.version
    assert published(connection) == []  # no replica loads it
    with pytest.raises(InvalidModelError, match="signed"):
        add("vllm")


def test_a_legacy_version_does_not_replace_a_signed_one(
    connection: sa.Connection, signer: ModelSigner
) -> None:
    signed = signer.register(connection, "m")
    with pytest.raises(ModelVersionConflictError):
        add_model(connection, "m", signed.version, pool="p", engine="vllm", endpoints=EMBEDDINGS)
    legacy = add_model(connection, "m", "1", pool="p", engine="vllm", endpoints=EMBEDDINGS)
    assert find_model(connection, "m") == legacy
    assert find_model(connection, f"m@{signed.version[:12]}") == replace(
        signed, requested_name=f"m@{signed.version[:12]}"
    )
