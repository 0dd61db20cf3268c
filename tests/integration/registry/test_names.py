"""Goal: what a name means is known for any time, for exactly those who may see it."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from threading import Barrier
from uuid import uuid4

import pytest
import sqlalchemy as sa

from registry.errors import (
    AliasLoopError,
    AmbiguousVersionError,
    InvalidModelError,
    ModelInUseError,
    ModelNotFoundError,
    NameTakenError,
    RevisionMismatchError,
)
from registry.models import ANY_TENANT, add_model, find_model, list_models
from registry.store.acts import revision_of
from registry.store.aliases import remove_name, set_alias
from registry.store.model_resolution import ALIAS_DEPTH_MAX
from registry.store.name_rows import NameRows, name_history, resolve
from registry.tables import model_names
from tests.support.registered_models import EMBEDDINGS, ModelSigner


def now(connection: sa.Connection) -> datetime:
    found = connection.scalar(sa.select(sa.func.clock_timestamp()))
    assert isinstance(found, datetime)
    return found


def add_legacy(connection: sa.Connection, name: str, version: str) -> None:
    add_model(connection, name, version, pool="p", engine="vllm", endpoints=EMBEDDINGS)


def version_at(connection: sa.Connection, name: str, at: datetime | None = None) -> str | None:
    found = resolve(connection, name, tenant_id=None, at=at)
    return None if found is None else found.version


def test_an_alias_follows_a_name_and_keeps_its_own(
    connection: sa.Connection, signer: ModelSigner
) -> None:
    signer.register(connection, "m", "one")
    set_alias(connection, "prod", "m")
    second = signer.register(connection, "m", "two")

    found = find_model(connection, "prod")
    assert found is not None
    assert (found.name, found.version, found.requested_name) == ("m", second.version, "prod")
    assert [one.requested_name for one in list_models(connection)] == ["m", "prod"]


def test_an_alias_of_a_version_pins_it(connection: sa.Connection, signer: ModelSigner) -> None:
    first = signer.register(connection, "m", "one")
    meaning = set_alias(connection, "prod", f"m@{first.version[:12]}")
    assert meaning.alias_of == first.id
    signer.register(connection, "m", "two")

    assert version_at(connection, "prod") == first.version
    assert {m.requested_name: m.version for m in list_models(connection)}["prod"] == first.version


def test_history_is_known_as_of_any_time(connection: sa.Connection, signer: ModelSigner) -> None:
    start = now(connection)
    first = signer.register(connection, "m", "one")
    set_alias(connection, "prod", "m")
    at_first = now(connection)
    second = signer.register(connection, "m", "two")
    at_second = now(connection)
    set_alias(connection, "prod", first.id)
    at_pin = now(connection)
    remove_name(connection, "prod")

    for at, expected in (
        (start, None),
        (at_first, first.version),
        (at_second, second.version),
        (at_pin, first.version),
        (None, None),
    ):
        assert version_at(connection, "prod", at) == expected
    texts = [meaning.alias_of for _, meaning in name_history(connection, "prod", limit=10)]
    assert texts == [None, first.id, "m"]


def test_aliases_never_form_a_loop(connection: sa.Connection) -> None:
    add_legacy(connection, "m", "1")
    set_alias(connection, "a0", "m")
    for number in range(1, ALIAS_DEPTH_MAX):
        set_alias(connection, f"a{number}", f"a{number - 1}")
    assert version_at(connection, f"a{ALIAS_DEPTH_MAX - 1}") == "1"

    with pytest.raises(AliasLoopError):  # too deep
        set_alias(connection, "too deep".replace(" ", "-"), f"a{ALIAS_DEPTH_MAX - 1}")
    for target in ("a0", "a1", "a5"):
        with pytest.raises(AliasLoopError):
            set_alias(connection, "a0", target)
    add_legacy(connection, "n", "1")
    set_alias(connection, "b", "n")
    with pytest.raises(AliasLoopError):  # those before it would be too deep
        set_alias(connection, "a0", "b")
    assert version_at(connection, "a7") == "1"


def test_an_alias_needs_a_target_that_exists_and_a_free_name(connection: sa.Connection) -> None:
    add_legacy(connection, "m", "1")
    for target in ("nothing", "m@2", "", "m@", "@1", "\x00"):
        with pytest.raises(ModelNotFoundError):
            set_alias(connection, "prod", target)
    with pytest.raises(NameTakenError):
        set_alias(connection, "m", "m@1")


def test_a_name_is_removed_unless_aliases_follow_it(connection: sa.Connection) -> None:
    add_legacy(connection, "m", "1")
    set_alias(connection, "a", "m")
    set_alias(connection, "b", "a")
    for name in ("a", "m"):
        with pytest.raises(ModelInUseError):
            remove_name(connection, name)
    for name in ("b", "a", "m"):
        remove_name(connection, name)
        assert find_model(connection, name) is None
        with pytest.raises(ModelNotFoundError):
            remove_name(connection, name)
    assert version_at(connection, "m@1") == "1"
    add_legacy(connection, "m", "1")
    assert version_at(connection, "m") == "1"


def test_a_change_needs_the_revision_that_was_read(connection: sa.Connection) -> None:
    add_legacy(connection, "m", "1")
    add_legacy(connection, "n", "1")
    first = set_alias(connection, "prod", "m", allows=lambda revision: revision == 0)
    assert set_alias(connection, "prod", "m") == first  # nothing changes
    with pytest.raises(RevisionMismatchError):
        set_alias(connection, "prod", "n", allows=lambda revision: revision == 0)
    second = set_alias(connection, "prod", "n", allows=lambda found: found == first.revision)
    assert second.revision > first.revision
    with pytest.raises(RevisionMismatchError):
        remove_name(connection, "prod", allows=lambda found: found == first.revision)
    remove_name(connection, "prod", allows=lambda found: found == second.revision)
    assert revision_of(NameRows(connection).meaning("prod")) == 0


def test_of_concurrent_changes_of_one_revision_one_wins(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        for name in "mnop":
            add_legacy(connection, name, "1")
        read = set_alias(connection, "prod", "m").revision
    together = Barrier(3)

    def change(target: str) -> bool:
        together.wait(10)
        try:
            with engine.begin() as connection:
                set_alias(connection, "prod", target, allows=lambda found: found == read)
        except RevisionMismatchError:
            return False
        return True

    with ThreadPoolExecutor(3) as pool:
        assert sorted(pool.map(change, "nop")) == [False, False, True]


def test_concurrent_aliases_never_form_a_loop(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        add_legacy(connection, "m", "1")
        for name in "ab":
            set_alias(connection, name, "m")
    together = Barrier(2)

    def follow(alias: str, target: str) -> bool:
        together.wait(10)
        try:
            with engine.begin() as connection:
                set_alias(connection, alias, target)
        except AliasLoopError:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(follow, "ab", "ba")) == [False, True]


def test_a_version_is_named_by_twelve_digits(
    connection: sa.Connection, signer: ModelSigner
) -> None:
    version = signer.register(connection, "m").version
    for digits in (12, 13, 63, 64):
        assert version_at(connection, f"m@{version[:digits]}") == version
    for digits in (1, 11):
        with pytest.raises(AmbiguousVersionError, match="12 digits"):
            resolve(connection, f"m@{version[:digits]}", tenant_id=None)
        assert find_model(connection, f"m@{version[:digits]}") is None
    for text in (
        f"n@{version}",
        f"m@{version}0",
        f"m@{version.upper()}x",
        "m@",
        "m@x",
        f"@{version}",
    ):
        assert version_at(connection, text) is None


def test_a_legacy_version_is_named_whole(connection: sa.Connection) -> None:
    add_legacy(connection, "m", "2024-01-31")
    add_legacy(connection, "a@b", "1")
    add_legacy(connection, "m", "x@y")
    assert version_at(connection, "m@2024-01-31") == "2024-01-31"
    assert version_at(connection, "m@2024-01-3") is None
    assert version_at(connection, "a@b") == "1"
    assert version_at(connection, "a@b@1") == "1"
    assert version_at(connection, "m@x@y") == "x@y"


@pytest.mark.parametrize("text", ["", "@", "@" * 500, "ü", "a b", "\x00", "x" * 10_000, "%", "_"])
def test_any_text_may_be_asked_for(connection: sa.Connection, text: str) -> None:
    add_legacy(connection, "m", "1")
    assert resolve(connection, text, tenant_id=ANY_TENANT) is None


def test_a_private_adapter_exists_for_its_tenant_alone(
    connection: sa.Connection, signer: ModelSigner
) -> None:
    base = signer.register(connection, "base")
    mine, yours = uuid4(), uuid4()
    adapter = signer.register(
        connection, "adapter", "lora", base=base.version, pool=None, tenant_id=mine
    )
    with pytest.raises(InvalidModelError, match="private"):
        set_alias(connection, "public", "adapter")
    set_alias(connection, "private", "adapter", tenant_id=mine)
    for text in ("adapter", adapter.id, f"adapter@{adapter.version[:12]}", "private"):
        assert resolve(connection, text, tenant_id=mine) is not None
        assert resolve(connection, text, tenant_id=ANY_TENANT) is not None
        assert resolve(connection, text, tenant_id=yours) is None
        assert resolve(connection, text, tenant_id=None) is None
    assert resolve(connection, "adapter@0", tenant_id=yours) is None  # no hint that it exists

    def listed(view: object) -> list[str]:
        return [one.requested_name for one in list_models(connection, tenant_id=view)]  # type: ignore[arg-type]

    assert listed(mine) == listed(ANY_TENANT) == ["adapter", "base", "private"]
    assert listed(yours) == listed(None) == ["base"]
    with pytest.raises(NameTakenError):
        set_alias(connection, "private", "base")


def test_old_releases_register_and_names_follow(connection: sa.Connection) -> None:
    """They insert into `model_versions` alone, or set `registered_at`."""
    insert = (
        "INSERT INTO model_versions (name, version, pool, engine, endpoints, registered_at) "
        "VALUES ('m', :version, 'p', 'vllm', '{/v1/embeddings}', clock_timestamp()) "
        "ON CONFLICT (name, version) DO UPDATE SET registered_at = clock_timestamp()"
    )
    for version in ("1", "2", "1"):
        connection.execute(sa.text(insert), {"version": version})
        assert version_at(connection, "m") == version
    assert len(name_history(connection, "m", limit=10)) == 3


def test_rows_are_never_changed_or_deleted(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        signer = ModelSigner()
        signer.trust(connection)
        signer.register(connection, "m")
        set_alias(connection, "prod", "m")
    statements = [
        f"DELETE FROM {table}"
        for table in (
            "model_names",
            "model_signatures",
            "model_manifests",
            "model_versions",
            "model_keys",
        )
    ]
    statements += [
        "UPDATE model_names SET alias_of = 'n' WHERE alias_of IS NOT NULL",
        "UPDATE model_manifests SET manifest = ''",
        "UPDATE model_signatures SET bundle = ''",
        "UPDATE model_versions SET pool = 'q'",
        "UPDATE model_versions SET tenant_id = gen_random_uuid(), registered_at = now()",
        "UPDATE model_versions SET verification = 'legacy'",
        "UPDATE model_keys SET pem = 'x'",
        "TRUNCATE model_names",
        "TRUNCATE model_versions CASCADE",
        "TRUNCATE model_keys",
    ]
    for statement in statements:
        with pytest.raises(sa.exc.IntegrityError), engine.begin() as connection:
            connection.execute(sa.text(statement))
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE model_versions SET retired_at = now()"))
        connection.execute(sa.text("UPDATE model_keys SET revoked_at = now()"))
    for statement in (
        "UPDATE model_versions SET retired_at = NULL",
        "UPDATE model_keys SET revoked_at = NULL",
    ):
        with pytest.raises(sa.exc.IntegrityError), engine.begin() as connection:
            connection.execute(sa.text(statement))
    with engine.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(model_names)) == 2
