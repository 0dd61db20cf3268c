"""Goal: `millrace models push` registers a version if and only if every object of it is stored."""

import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner, Result

from cli.exits import ExitCode
from cli.main import app
from registry.manifests.manifest import decode_manifest
from registry.manifests.model_objects import file_key
from registry.publishing.folder_manifest import describe_folder
from registry.publishing.published_version import PublishedVersion, publish_version, sign_version
from registry.signing.keys import SigningKey
from registry.store.keys import revoke_key, trust_key
from registry.tables import model_manifests, model_signatures, model_versions
from storage.objects.errors import ObjectStoreFullError
from storage.objects.local_object_store import LocalUpload
from storage.objects.object_store import ObjectStore
from tenancy.audit_reading import read_entries
from tenancy.installation_log import INSTALLATION
from tenancy.tenants import create_tenant
from tests.support.lora_adapters import base_weights, write_adapter
from tests.support.model_hub import COMMIT, ModelHub, serve_hub

pytestmark = pytest.mark.timeout(300)

KEY = SigningKey.generate()
CONFIG = b'{"architectures": ["LlamaForCausalLM"]}'


class Publisher:
    """An operator with a model's folder, a key and an installation."""

    def __init__(self, engine: sa.Engine, folder: Path) -> None:
        self.engine, self.folder = engine, folder
        self.model = folder / "model"
        self.objects = folder / "objects"
        self.model.mkdir()
        (self.model / "config.json").write_bytes(CONFIG)
        (self.model / "model.safetensors").write_bytes(os.urandom(50_000))
        (folder / "key.pem").write_bytes(KEY.pem())
        with engine.begin() as connection:
            trust_key(connection, KEY.public.pem, "test")

    def push(self, *arguments: str, source: str | None = None, signed: bool = True) -> Result:
        key = ["--sign", str(self.folder / "key.pem")] if signed else []
        target = source or str(self.model)
        return CliRunner().invoke(app, ["models", "push", target, "--name", "m", *key, *arguments])

    def versions(self) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.execute(sa.select(model_versions).order_by("id")))

    def entries(self) -> list[Any]:
        """Return the audit entries of registrations, newest first."""
        with self.engine.connect() as connection:
            rows, _ = read_entries(connection, INSTALLATION, after=None, limit=50) or ([], False)
        return [row for row in rows if row.action == "model.registered"]

    def stored(self, kind: str) -> list[str]:
        folder = self.objects / "models" / kind
        return [path.name for path in folder.rglob("*") if path.is_file()]

    def edit(self) -> None:
        (self.model / "model.safetensors").write_bytes(os.urandom(50_000))


@pytest.fixture
def publisher(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publisher:
    monkeypatch.setenv("MILLRACE_DATABASE_URL", database_url)
    monkeypatch.setenv("MILLRACE_OBJECTS_ROOT", str(tmp_path / "objects"))
    monkeypatch.setenv("MILLRACE_CACHE", str(tmp_path / "cache"))
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    return Publisher(engine, tmp_path)


def test_a_pushed_version_is_registered_and_recorded(publisher: Publisher) -> None:
    done = publisher.push()

    assert done.exit_code == 0, done.output
    (row,) = publisher.versions()
    assert done.stdout == f"m {row.version}\n"
    assert (row.verification, row.engine, row.pool) == ("signed", "vllm", f"m-{row.version[:12]}")
    assert row.endpoints == ["/v1/chat/completions", "/v1/completions"]
    digests = {sha256(path.read_bytes()).hexdigest() for path in publisher.model.iterdir()}
    assert set(publisher.stored("files")) == digests
    with publisher.engine.connect() as connection:
        manifest = connection.scalar(sa.select(model_manifests.c.manifest))
        signer = connection.scalar(sa.select(model_signatures.c.key_id))
    assert {file.sha256 for file in decode_manifest(bytes(manifest or b"")).files} == digests
    assert signer == KEY.public.key_id
    (entry,) = publisher.entries()
    assert entry.subject == f"m@{row.version}"

    again = publisher.push()
    assert (again.exit_code, again.stdout) == (0, done.stdout)
    assert len(publisher.versions()) == 1


def test_another_file_is_another_version_that_shares_the_rest(publisher: Publisher) -> None:
    publisher.push()
    publisher.edit()
    assert publisher.push().exit_code == 0
    assert len(publisher.versions()) == 2
    assert len(publisher.stored("files")) == 3


def test_an_altered_file_of_the_store_is_found_and_repaired(publisher: Publisher) -> None:
    publisher.push()
    data = (publisher.model / "model.safetensors").read_bytes()
    stored = publisher.objects / "models" / "files" / sha256(data).hexdigest()
    stored.chmod(0o600)
    stored.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    verified = CliRunner().invoke(app, ["models", "verify", "m"])
    assert verified.exit_code == ExitCode.FAILED
    assert "--replace" in verified.stderr
    assert publisher.push("--replace").exit_code == 0
    assert stored.read_bytes() == data
    assert CliRunner().invoke(app, ["models", "verify", "m"]).exit_code == ExitCode.OK


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --sign KEY"),
        (("--key", "key.pem"), "--signature and --key go together"),
    ],
)
def test_a_version_needs_a_signature(
    arguments: tuple[str, ...], message: str, publisher: Publisher
) -> None:
    done = publisher.push(*arguments, signed=False)
    assert done.exit_code == ExitCode.USAGE
    assert message in done.stderr
    assert not publisher.objects.exists()


def test_an_unknown_or_revoked_key_registers_nothing(publisher: Publisher) -> None:
    (publisher.folder / "key.pem").write_bytes(SigningKey.generate().pem())
    unknown = publisher.push()
    (publisher.folder / "key.pem").write_bytes(KEY.pem())
    with publisher.engine.begin() as connection:
        revoke_key(connection, KEY.public.key_id)
    revoked = publisher.push()

    assert unknown.exit_code == revoked.exit_code == ExitCode.USAGE
    assert "not among the model keys" in unknown.stderr
    assert "revoked" in revoked.stderr
    assert not publisher.versions()


def test_a_full_store_registers_nothing(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ObjectStoreFullError

    with monkeypatch.context() as patch:
        patch.setattr(LocalUpload, "_publish", fail)
        done = publisher.push()

    assert done.exit_code == ExitCode.FAILED
    assert done.stderr.splitlines()[-1] == "millrace: The object store is full."
    assert not publisher.versions()
    assert not publisher.entries()
    assert publisher.push().exit_code == 0


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pytorch_model.bin", b"pickle"),
        ("run.py", b"import os"),
        ("generation_config.json", b"["),
        ("adapter_config.json", b"{}"),
    ],
)
def test_a_folder_that_is_no_model_registers_nothing(
    name: str, content: bytes, publisher: Publisher
) -> None:
    (publisher.model / name).write_bytes(content)
    done = publisher.push()
    assert done.exit_code == ExitCode.USAGE
    assert len(done.stderr.splitlines()) == 1
    assert not publisher.versions()
    assert not publisher.stored("manifests")


def test_objects_that_disappear_during_a_push_register_nothing(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(objects: ObjectStore, *arguments: Any, **options: Any) -> PublishedVersion:
        published = publish_version(objects, *arguments, **options)
        objects.delete(file_key(published.manifest.files[0].sha256))
        return published

    with monkeypatch.context() as patch:
        patch.setattr("cli.model_push.publish_version", lose)
        done = publisher.push()

    assert done.exit_code == ExitCode.FAILED
    assert "push again" in done.stderr
    assert not publisher.versions()
    assert publisher.push().exit_code == 0


def test_options_are_checked_before_anything_is_sent(publisher: Publisher) -> None:
    (options := publisher.folder / "o.toml").write_text("trust_remote_code = true")
    done = publisher.push("--options", str(options))
    assert done.exit_code == ExitCode.USAGE
    assert "trust_remote_code" in done.stderr
    assert not publisher.objects.exists()


def test_code_needs_an_operator_and_is_recorded(publisher: Publisher) -> None:
    (publisher.model / "modeling_x.py").write_bytes(b"import os")

    asked = publisher.push("--allow-code")
    assert asked.exit_code == ExitCode.USAGE
    assert "modeling_x.py" in asked.stderr
    assert not publisher.stored("files")

    assert publisher.push("--allow-code", "--yes").exit_code == 0
    assert publisher.entries()[0].details["allowed_code_files"] == 1


class Adapting:
    """A registered base model, and the folder of an adapter."""

    def __init__(self, publisher: Publisher, folder: Path) -> None:
        self.publisher, self.adapter = publisher, folder / "adapter"
        weights = publisher.model / "model.safetensors"
        weights.write_bytes(base_weights())
        publisher.push()
        (self.base,) = publisher.versions()
        (other := folder / "other").mkdir()
        (other / "config.json").write_bytes(CONFIG)
        (other / "model.safetensors").write_bytes(base_weights(hidden=64))
        CliRunner().invoke(
            app, ["models", "push", str(other), "--name", "other", "--sign", self.key]
        )

    @property
    def key(self) -> str:
        return str(self.publisher.folder / "key.pem")

    def push(self, *arguments: str) -> Result:
        command = ["models", "push", str(self.adapter), "--name", "a", "--sign", self.key]
        return CliRunner().invoke(app, [*command, *arguments])


@pytest.fixture
def adapting(publisher: Publisher, tmp_path: Path) -> Adapting:
    return Adapting(publisher, tmp_path)


def test_an_adapter_is_served_by_the_pool_of_its_base(adapting: Adapting) -> None:
    write_adapter(adapting.adapter, 1)
    assert "give --base" in adapting.push().stderr
    done = adapting.push("--base", f"m@{adapting.base.version[:12]}")

    assert done.exit_code == 0, done.output
    row = adapting.publisher.versions()[-1]
    assert (row.base_version, row.pool) == (adapting.base.version, adapting.base.pool)
    assert row.endpoints == adapting.base.endpoints
    assert row.tenant_id is None
    of_adapter = adapting.push("--base", "a")
    assert "is no base of adapters" in of_adapter.stderr


@pytest.mark.parametrize(
    ("fields", "arguments", "message"),
    [
        ({"rank": 32}, (), "rank 32; replicas take 16"),
        ({"rank": 8}, ("--rank-max", "4"), "rank 8; replicas take 4"),
        ({}, ("--base", "other"), "do not fit those of the base model"),
        ({"use_dora": True}, (), "DoRA"),
        ({"bias": "all"}, (), "no adapters with biases"),
    ],
)
def test_an_adapter_that_cannot_be_served_is_refused_before_anything_is_sent(
    fields: dict[str, Any], arguments: tuple[str, ...], message: str, adapting: Adapting
) -> None:
    write_adapter(adapting.adapter, 1, **fields)
    before = sorted(adapting.publisher.stored("files"))

    done = adapting.push("--base", "m", *arguments)

    assert done.exit_code == ExitCode.USAGE
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr
    assert sorted(adapting.publisher.stored("files")) == before
    assert len(adapting.publisher.versions()) == 2


def test_a_larger_rank_is_taken_where_replicas_take_it(adapting: Adapting) -> None:
    write_adapter(adapting.adapter, 1, rank=32)
    assert adapting.push("--base", "m", "--rank-max", "32").exit_code == 0


def test_a_private_adapter_is_that_of_its_tenant(adapting: Adapting) -> None:
    publisher = adapting.publisher
    assert "give --base" in publisher.push("--tenant", "owner").stderr
    write_adapter(adapting.adapter, 1)
    given = ("--base", "m", "--tenant", "owner")
    unknown = adapting.push(*given)
    assert unknown.exit_code == ExitCode.NOT_FOUND
    with publisher.engine.begin() as connection:
        owner = create_tenant(connection, "owner")

    assert adapting.push(*given).exit_code == 0
    assert publisher.versions()[-1].tenant_id == owner


def test_a_signature_made_elsewhere_counts(publisher: Publisher) -> None:
    made = sign_version(KEY, describe_folder(publisher.model))
    (bundle := publisher.folder / "bundle.json").write_bytes(made.bundle)
    (public := publisher.folder / "public.pem").write_bytes(KEY.public.pem)
    given = ("--signature", str(bundle), "--key", str(public))

    assert publisher.push(*given, signed=False).exit_code == 0
    publisher.edit()
    changed = publisher.push(*given, signed=False)

    assert changed.exit_code == ExitCode.USAGE
    assert "differs from the one that was signed" in changed.stderr
    assert len(publisher.versions()) == 1


def test_a_model_of_the_hub_names_its_commit(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"config.json": CONFIG, "model.safetensors": os.urandom(5000), "a.bin": b"pickle"}
    with serve_hub(ModelHub(files)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        done = publisher.push(source="hf://org/tiny")
        assert done.exit_code == 0, done.output
        missing = publisher.push(source="hf://org/tiny@gone")
    away = publisher.push(source="hf://org/tiny")

    assert "left out of the model: a.bin" in done.stderr
    (row,) = publisher.versions()
    bill = CliRunner().invoke(app, ["models", "sbom", f"m@{row.version[:12]}"])
    model = json.loads(bill.stdout)["metadata"]["component"]
    assert model["externalReferences"][0]["url"] == f"hf://org/tiny@{COMMIT}"
    assert {part["name"] for part in model["components"]} == {"config.json", "model.safetensors"}
    for refused in (missing, away):
        assert refused.exit_code == ExitCode.USAGE
        assert len(refused.stderr.splitlines()) == 1


def add(*arguments: str) -> Result:
    command = ["models", "add", "h", "--engine", "openai_http", "--endpoints", "completions"]
    return CliRunner().invoke(app, [*command, *arguments])


def test_a_model_without_files_is_unverified(publisher: Publisher) -> None:
    first = add("--upstream", "http://127.0.0.1:9000")
    again = add("--upstream", "http://127.0.0.1:9000")
    other = add("--upstream", "http://127.0.0.1:9001", "--pool", "p")
    legacy = add("--version", "1", "--pool", "old")

    assert [one.exit_code for one in (first, again, other, legacy)] == [0, 0, 0, 0]
    assert first.stdout == again.stdout
    rows = publisher.versions()
    assert [row.verification for row in rows] == ["unverified", "unverified", "legacy"]
    assert [len(row.version) for row in rows] == [64, 64, 1]
    assert [row.pool for row in rows] == [f"h-{rows[0].version[:12]}", "p", "old"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--version", "1", "--upstream", "http://h"),
        ("--engine", "vllm"),
        ("--upstream", "http://h/v1?key=abc"),
    ],
)
def test_a_contradiction_is_refused(arguments: tuple[str, ...], publisher: Publisher) -> None:
    assert add(*arguments).exit_code == ExitCode.USAGE
    assert not publisher.versions()


def test_a_version_without_manifest_has_no_bill(publisher: Publisher) -> None:
    add("--version", "1", "--pool", "old")
    done = CliRunner().invoke(app, ["models", "sbom", "h"])
    assert done.exit_code == ExitCode.NOT_FOUND
    assert "it is legacy" in done.stderr
