"""Goal: `models collect` removes what no registered version needs, and nothing else."""

import json
import os
from pathlib import Path
from random import Random
from typing import Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner, Result

from cli.exits import ExitCode
from cli.main import app
from core.clock import SystemClock
from registry.manifests.manifest import encode_manifest
from registry.manifests.model_objects import file_key, provenance_key
from registry.signing.keys import SigningKey
from registry.signing.model_signature import sign_files
from registry.store.keys import trust_key
from registry.store.object_collection import (
    read_needed,
    remove_unneeded,
    unneeded_objects,
)
from registry.store.registration import register_signed_version
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import read_object, write_object
from tenancy.tables import audit_log
from tests.support.registered_models import EMBEDDINGS
from tests.support.signed_models import StoredModel, model_contents, store_model

pytestmark = pytest.mark.timeout(300)

KEY = SigningKey.generate()
SHARED = {"tokenizer.json": b"shared by all"}


class Installation:
    """A registry and an object store, whose objects are old unless a test makes them young."""

    def __init__(self, engine: sa.Engine, root: Path) -> None:
        self.engine, self.root, self.random = engine, root, Random(7)
        self.objects = LocalObjectStore(root, clock=SystemClock())
        with engine.begin() as connection:
            trust_key(connection, KEY.public.pem, "test")

    def store(self) -> StoredModel:
        """Store a model, as a push that fails before its registration."""
        return store_model(self.objects, model_contents(self.random) | SHARED, KEY)

    def register(self, stored: StoredModel, name: str = "m") -> None:
        with self.engine.begin() as connection:
            register_signed_version(
                connection,
                name=name,
                manifest_bytes=encode_manifest(stored.manifest),
                bundle=sign_files(KEY, stored.version, stored.manifest.files),
                key_id=KEY.public.key_id,
                pool="p",
                endpoints=EMBEDDINGS,
            )

    def age(self, seconds: float = 100_000) -> None:
        """Let all objects be that old."""
        for path in self.root.rglob("*"):
            stat = path.stat()
            os.utime(path, (stat.st_atime, stat.st_mtime - seconds))

    def keys(self) -> set[str]:
        return {info.key for info in self.objects.list("models/")}

    def collect(self, *arguments: str) -> Result:
        done = CliRunner().invoke(app, ["models", "collect", *arguments, "-o", "json"])
        assert done.exit_code == ExitCode.OK, done.output
        return done

    def collected(self, *arguments: str) -> set[str]:
        found: list[Any] = json.loads(self.collect(*arguments).stdout)
        return {one["key"] for one in found}


@pytest.fixture
def installation(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Installation:
    monkeypatch.setenv("MILLRACE_DATABASE_URL", database_url)
    monkeypatch.setenv("MILLRACE_OBJECTS_ROOT", str(tmp_path / "objects"))
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    return Installation(engine, tmp_path / "objects")


def test_what_a_failed_push_left_is_listed_and_removed_on_request(
    installation: Installation,
) -> None:
    kept = installation.store()
    installation.register(kept)
    write_object(
        installation.objects, provenance_key(kept.version, KEY.public.key_id), b"signature"
    )
    needed = installation.keys()
    installation.store()
    write_object(installation.objects, "models/other/thing", b"of nobody")
    left = installation.keys() - needed - {"models/other/thing"}
    installation.age()

    assert installation.collected() == left
    assert installation.keys() >= left
    done = installation.collect("--delete")
    assert f"{len(left)} objects" in done.stderr
    assert installation.keys() == needed | {"models/other/thing"}
    assert installation.collected("--delete") == set()
    with installation.engine.connect() as connection:
        entries = connection.execute(
            sa.select(audit_log.c.details).where(audit_log.c.action == "model.objects_removed")
        ).all()
    assert [entry.details["objects"] for entry in entries] == [len(left)]


def test_a_young_object_stays_for_a_push_may_be_in_progress(installation: Installation) -> None:
    installation.store()
    installation.age(80_000)
    before = installation.keys()
    assert installation.collected("--delete") == set()
    assert installation.keys() == before


def test_a_retired_version_stays_unless_it_is_asked_for(installation: Installation) -> None:
    old, new = installation.store(), installation.store()
    installation.register(old)
    installation.register(new)
    assert CliRunner().invoke(app, ["models", "retire", f"m@{old.version}"]).exit_code == 0
    installation.age()

    assert installation.collected("--delete") == set()
    gone = installation.collected("--retired", "--delete")
    of_new = {file_key(file.sha256) for file in new.manifest.files}
    assert {file_key(file.sha256) for file in old.manifest.files} - of_new <= gone
    for file in new.manifest.files:
        assert read_object(installation.objects, file_key(file.sha256))


def test_a_version_that_is_registered_meanwhile_keeps_its_objects(
    installation: Installation,
) -> None:
    stored = installation.store()
    objects = installation.objects
    with installation.engine.begin() as connection:
        needed = read_needed(connection, with_retired=False)
    found = list(unneeded_objects(objects, needed, float("inf")))
    installation.register(stored)

    before = installation.keys()
    with installation.engine.begin() as connection:
        removed = remove_unneeded(connection, objects, found, needed, with_retired=False)
    assert (removed, installation.keys()) == ([], before)
    assert len(found) == len(before)
