"""Goal: operators see, name, verify and retire models, with reliable exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner, Result

from cli.exits import ExitCode
from cli.main import app
from core.clock import SystemClock
from registry.manifests.model_folder import scan_folder
from registry.manifests.model_objects import (
    file_key,
    manifest_key,
    provenance_key,
    signature_key,
)
from registry.signing.keys import SigningKey
from registry.signing.model_signature import sign_files
from registry.store.registration import register_signed_version
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import write_object
from tenancy.tables import audit_log
from tests.support.registered_models import EMBEDDINGS, ModelSigner, manifest_of

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch, database_url: str, tmp_path: Path) -> LocalObjectStore:
    """Set database and object store by variable, as an operator does; return the store."""
    root = tmp_path / "objects"
    monkeypatch.setenv("MILLRACE_DATABASE_URL", database_url)
    monkeypatch.setenv("MILLRACE_OBJECTS_ROOT", str(root))
    return LocalObjectStore(root, clock=SystemClock())


@pytest.fixture
def signer(objects: LocalObjectStore, tmp_path: Path) -> ModelSigner:
    """A key that was added by a command."""
    signer = ModelSigner()
    (tmp_path / "release.pem").write_bytes(signer.key.public.pem)
    added = millrace("models", "keys", "add", str(tmp_path / "release.pem"))
    assert added.stdout.strip() == signer.key_id
    return signer


def millrace(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def shown(*arguments: str) -> Any:
    result = millrace(*arguments, "-o", "json")
    assert result.exit_code == ExitCode.OK, result.stderr
    return json.loads(result.stdout)


def push(engine: sa.Engine, objects: LocalObjectStore, signer: ModelSigner, content: str) -> str:
    """Store and register a version of `m`; return its id."""
    manifest = manifest_of(content)
    data, bundle = signer.sign(manifest)
    version = signer.version(manifest)
    write_object(objects, manifest_key(version), data)
    write_object(objects, signature_key(version, signer.key_id), bundle)
    write_object(objects, file_key(manifest.files[0].sha256), content.encode())
    with engine.begin() as connection:
        registered = register_signed_version(
            connection,
            name="m",
            manifest_bytes=data,
            bundle=bundle,
            key_id=signer.key_id,
            pool="p",
            endpoints=EMBEDDINGS,
        )
    return registered.id


def test_a_version_is_shown_and_compared(
    engine: sa.Engine, objects: LocalObjectStore, signer: ModelSigner
) -> None:
    old, new = (push(engine, objects, signer, content) for content in ("old", "new weights"))
    table = millrace("models", "show", "m").stdout
    assert new in table
    assert f"release.pem {signer.key_id}" in table
    assert "1, 11 bytes" in table
    details = shown("models", "show", old[:14])
    assert (details["id"], details["names"]) == (old, [])
    diff = millrace("models", "diff", old, "m").stdout
    assert "files/model.safetensors" in diff
    listed = shown("models", "list", "--all")
    assert {one["version"]: one["verification"] for one in listed} == {
        old[2:]: "signed",
        new[2:]: "signed",
    }
    assert len(shown("models", "list")) == 1
    assert millrace("models", "show", "nothing").exit_code == ExitCode.NOT_FOUND
    assert millrace("models", "show", old[:8]).exit_code == ExitCode.USAGE


def test_a_signature_of_the_files_alone_is_shown_and_does_not_count(
    engine: sa.Engine, objects: LocalObjectStore, signer: ModelSigner
) -> None:
    version = push(engine, objects, signer, "weights").partition("@")[2]
    of_files_alone = sign_files(signer.key, "model", manifest_of("weights").files)
    write_object(objects, provenance_key(version, signer.key_id), of_files_alone)
    stranger = SigningKey.generate().public.key_id
    write_object(objects, provenance_key(version, stranger), b"{}")

    details = shown("models", "show", "m")
    assert details["provenance"] == sorted([signer.key_id, stranger])
    assert f"files signed by  {stranger}" in millrace("models", "show", "m").stdout
    verified = shown("models", "verify", "m")
    problems = {p["name"]: p["problem"] for p in verified["parts"] if p["kind"] == "provenance"}
    assert problems[signer.key_id] is None
    assert problems[stranger]
    assert verified["is_sound"] is True

    objects.delete(signature_key(version, signer.key_id))
    assert millrace("models", "verify", "m").exit_code == ExitCode.FAILED


def test_an_alias_is_set_shown_and_removed(
    engine: sa.Engine, objects: LocalObjectStore, signer: ModelSigner
) -> None:
    version = push(engine, objects, signer, "weights")
    assert millrace("models", "alias", "prod", "m").stdout == "prod m\n"
    assert millrace("models", "alias", "prod", version[:14]).stdout == f"prod {version}\n"
    (listed,) = shown("models", "alias")
    assert (listed["id"], listed["target"], listed["model_version"]) == ("prod", version, version)
    stale = millrace("models", "alias", "prod", "m", "--if-revision", "1")
    assert stale.exit_code == ExitCode.CONFLICT
    revision = str(listed["revision"])
    assert millrace("models", "alias", "prod", "m", "--if-revision", revision).stdout == "prod m\n"
    assert millrace("models", "alias", "--remove", "prod").exit_code == ExitCode.OK
    history = shown("models", "alias", "prod")
    assert [one["meaning"] for one in history] == [None, "m", version, "m"]
    for wrong, code in (
        (("prod", "nothing"), ExitCode.NOT_FOUND),
        (("--remove", "prod"), ExitCode.NOT_FOUND),
        (("nothing",), ExitCode.NOT_FOUND),
        (("m", version), ExitCode.CONFLICT),
        (("a@b", "m"), ExitCode.USAGE),
        (("--remove",), ExitCode.USAGE),
    ):
        assert millrace("models", "alias", *wrong).exit_code == code, wrong


def test_a_version_is_retired_when_no_name_means_it(
    engine: sa.Engine, objects: LocalObjectStore, signer: ModelSigner
) -> None:
    version = push(engine, objects, signer, "weights")
    assert millrace("models", "retire", version, "--force").exit_code == ExitCode.CONFLICT
    millrace("models", "alias", "--remove", "m")
    assert millrace("models", "retire", version).exit_code == ExitCode.OK
    assert "retired" in millrace("models", "list", "--all").stdout
    assert shown("models", "list") == []


def test_a_version_is_verified_against_the_store(
    engine: sa.Engine, objects: LocalObjectStore, signer: ModelSigner
) -> None:
    version = push(engine, objects, signer, "weights")
    sound = shown("models", "verify", "m")
    assert sound["is_sound"] is True
    assert [part["kind"] for part in sound["parts"]] == ["manifest", "signature", "file"]

    manifest = manifest_of("weights")
    key = file_key(manifest.files[0].sha256)
    for content, problem in ((b"WEIGHTS", "has another content"), (b"x", "has 1 bytes")):
        write_object(objects, key, content)
        broken = millrace("models", "verify", version)
        assert broken.exit_code == ExitCode.FAILED
        assert problem in broken.stdout
    objects.delete(key)
    assert "not stored" in millrace("models", "verify", version).stdout
    write_object(objects, key, b"weights")
    write_object(objects, manifest_key(version[2:]), b"{}")
    assert millrace("models", "verify", version).exit_code == ExitCode.FAILED
    write_object(objects, manifest_key(version[2:]), signer.sign(manifest)[0])
    assert millrace("models", "verify", version).exit_code == ExitCode.OK

    assert millrace("models", "keys", "revoke", signer.key_id).exit_code == ExitCode.OK
    revoked = millrace("models", "verify", version)
    assert revoked.exit_code == ExitCode.FAILED
    assert "its key is revoked" in revoked.stdout
    (listed,) = shown("models", "keys", "list")
    assert listed["revoked_at"] is not None


def test_a_folder_is_verified_against_a_signature(tmp_path: Path) -> None:
    folder, signer = tmp_path / "model", ModelSigner()
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (tmp_path / "key.pem").write_bytes(signer.key.public.pem)
    (tmp_path / "sig").write_bytes(sign_files(signer.key, "any", scan_folder(folder)))
    verify = ["models", "verify", str(folder), "--signature", str(tmp_path / "sig")]
    verify += ["--key", str(tmp_path / "key.pem")]
    assert millrace(*verify).exit_code == ExitCode.OK
    (folder / "config.json").write_text("{} ")
    changed = millrace(*verify)
    assert changed.exit_code != ExitCode.OK
    assert "config.json" in changed.stderr
    assert millrace(*verify[:-2]).exit_code == ExitCode.USAGE


def test_every_act_is_recorded(
    engine: sa.Engine, objects: LocalObjectStore, signer: ModelSigner
) -> None:
    version = push(engine, objects, signer, "weights")
    millrace("models", "alias", "prod", "m")
    millrace("models", "alias", "--remove", "prod")
    millrace("models", "alias", "--remove", "m")
    millrace("models", "retire", version)
    millrace("models", "keys", "revoke", signer.key_id)
    with engine.connect() as connection:
        query = sa.select(audit_log.c.action, audit_log.c.subject).order_by(audit_log.c.sequence)
        found = [tuple(row) for row in connection.execute(query)]
    assert found == [
        ("model_key.added", signer.key_id),
        ("model_alias.set", "prod"),
        ("model_name.removed", "prod"),
        ("model_name.removed", "m"),
        ("model.retired", version),
        ("model_key.revoked", signer.key_id),
    ]
    republished = millrace("models", "republish")
    assert "2 states" in republished.stderr
    with engine.connect() as connection:
        last = sa.select(audit_log.c.details).where(audit_log.c.action == "models.republished")
        assert connection.execute(last).scalar_one()["states"] == 2
