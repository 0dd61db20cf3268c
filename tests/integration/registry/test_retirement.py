"""Goal: what is in use is not retired by mistake, and what is retired or revoked stays so."""

import pytest
import sqlalchemy as sa

from registry.errors import (
    InvalidModelError,
    ModelInUseError,
    ModelKeyNotFoundError,
    ModelKeyRevokedError,
    ModelNotFoundError,
    ModelRetiredError,
)
from registry.models import ModelVersion, find_model, find_retired, list_models, list_versions
from registry.signing.keys import InvalidKeyError
from registry.store.aliases import remove_name, set_alias
from registry.store.keys import list_keys, revoke_key, trust_key
from registry.store.retirement import retire
from registry.store.state_publishing import publish_all
from registry.store.version_details import diff_versions, read_details
from tests.integration.registry.outbox_states import published
from tests.support.registered_models import ModelSigner
from topics.records.model_states import ModelKeyState, ModelState


def no_jobs(_connection: sa.Connection, _version: ModelVersion) -> int:
    return 0


def three_jobs(_connection: sa.Connection, _version: ModelVersion) -> int:
    return 3


def test_a_version_that_a_name_means_is_not_retired(
    connection: sa.Connection, signer: ModelSigner
) -> None:
    old = signer.register(connection, "m", "old")
    set_alias(connection, "prod", old.id)
    for force in (False, True):
        with pytest.raises(ModelInUseError, match="m, prod"):
            retire(connection, old.id, count_jobs=no_jobs, force=force)
    signer.register(connection, "m", "new")
    with pytest.raises(ModelInUseError, match="prod"):
        retire(connection, old.id, count_jobs=no_jobs)
    set_alias(connection, "prod", "m")

    retired = retire(connection, f"m@{old.version[:12]}", count_jobs=no_jobs)
    assert retired.retired_at is not None
    state = ModelState("m", old.version, "p", revision=2, retired=True)
    assert published(connection)[-1] == (f"retired:{old.id}", state)
    assert find_model(connection, old.id) is None
    assert find_retired(connection, list_versions(connection)) == {old.id}
    assert retire(connection, old.id, count_jobs=no_jobs) == retired
    with pytest.raises(ModelRetiredError):
        set_alias(connection, "prod", old.id)
    with pytest.raises(ModelRetiredError):
        signer.register(connection, "m", "old")


def test_a_version_that_jobs_use_is_retired_by_force(
    connection: sa.Connection, signer: ModelSigner
) -> None:
    version = signer.register(connection, "m")
    remove_name(connection, "m")
    with pytest.raises(ModelInUseError, match="3"):
        retire(connection, version.id, count_jobs=three_jobs)
    assert retire(connection, version.id, count_jobs=three_jobs, force=True).retired_at
    with pytest.raises(ModelNotFoundError):
        retire(connection, "m@nothing", count_jobs=no_jobs)


def test_a_base_of_adapters_is_not_retired(connection: sa.Connection, signer: ModelSigner) -> None:
    base = signer.register(connection, "base")
    adapter = signer.register(connection, "adapter", "lora", base=base.version)
    remove_name(connection, "base")
    with pytest.raises(ModelInUseError, match="adapter@"):
        retire(connection, base.id, count_jobs=no_jobs, force=True)
    remove_name(connection, "adapter")
    retire(connection, adapter.id, count_jobs=no_jobs)
    assert retire(connection, base.id, count_jobs=no_jobs).retired_at
    assert list_models(connection) == []


def test_a_key_is_revoked_for_good(connection: sa.Connection, signer: ModelSigner) -> None:
    signer.register(connection, "m")
    revoked = revoke_key(connection, signer.key_id)
    assert revoked.revoked_at is not None
    assert published(connection)[0] == (
        f"key:{signer.key_id}",
        ModelKeyState(signer.key_id, revision=1),
    )
    assert published(connection)[-1] == (
        f"revoked:{signer.key_id}",
        ModelKeyState(signer.key_id, revision=2, revoked=True),
    )
    assert revoke_key(connection, signer.key_id) == revoked
    with pytest.raises(ModelKeyRevokedError):
        signer.trust(connection)
    for unknown in ("0" * 64, "", "\x00", "ü"):
        with pytest.raises(ModelKeyNotFoundError):
            revoke_key(connection, unknown)
    details = read_details(connection, "m")
    assert [one.revoked_at for one in details.signatures] == [revoked.revoked_at]


def test_a_key_is_a_public_key_with_a_name(connection: sa.Connection, signer: ModelSigner) -> None:
    pem = signer.key.public.pem
    assert trust_key(connection, pem, "another name").name == "release"
    assert [key.key_id for key in list_keys(connection)] == [signer.key_id]
    for refused in (b"", b"x", pem[:-40], signer.key.pem()):
        with pytest.raises(InvalidKeyError):
            trust_key(connection, refused, "name")
    for name in ("", " ", "a\nb", "\x00", "x" * 257):
        with pytest.raises(InvalidModelError):
            trust_key(connection, pem, name)


def test_all_states_are_published_again(connection: sa.Connection, signer: ModelSigner) -> None:
    signer.register(connection, "m")
    signer.register(connection, "n", "other")
    before = dict(published(connection))
    connection.execute(sa.text("DELETE FROM outbox"))
    assert publish_all(connection) == 3
    assert dict(published(connection)) == before


def test_details_and_differences_of_versions(
    connection: sa.Connection, signer: ModelSigner
) -> None:
    old = signer.register(connection, "m", "old")
    new = signer.register(connection, "m", "new!")
    set_alias(connection, "prod", "m")
    details = read_details(connection, "prod")
    assert details.model.id == new.id
    assert details.names == ["m", "prod"]
    assert details.manifest is not None
    assert details.manifest.total_bytes == 4
    assert [(one.key_id, one.key_name) for one in details.signatures] == [
        (signer.key_id, "release")
    ]
    before, after, changes = diff_versions(connection, old.id, "m")
    assert (before.id, after.id) == (old.id, new.id)
    assert list(changes) == ["files/model.safetensors"]
