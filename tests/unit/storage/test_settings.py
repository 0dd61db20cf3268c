"""Goal: wrong settings stop the process at start, and no message shows a secret."""

from pathlib import Path

import pytest

from core.errors import SettingsError
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.open_store import object_store_from_env
from storage.objects.s3_object_store import S3ObjectStore
from storage.objects.settings import S3Settings
from storage.postgres.settings import DatabaseSettings

URL = "MILLRACE_DATABASE_URL"
S3 = {"MILLRACE_OBJECTS_KIND": "s3", "MILLRACE_S3_BUCKET": "jobs"}
SECRET = "hunter2-secret"


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_a_database_url_gets_the_psycopg_driver(scheme: str) -> None:
    settings = DatabaseSettings.from_env({URL: f"{scheme}://me:{SECRET}@db:5433/jobs?host=/tmp"})
    url = settings.sqlalchemy_url()
    assert url.drivername == "postgresql+psycopg"
    assert (url.username, url.password, url.host, url.port) == ("me", SECRET, "db", 5433)
    assert (url.database, url.query["host"]) == ("jobs", "/tmp")
    assert SECRET not in repr(settings) + str(settings) + str(url) + settings.model_dump_json()


def test_a_user_may_hold_an_at_sign() -> None:
    url = DatabaseSettings.from_env({URL: f"postgresql://me@db:{SECRET}@db/jobs"}).sqlalchemy_url()
    assert (url.username, url.password, url.host) == ("me@db", SECRET, "db")


@pytest.mark.parametrize(
    "rest", ["db/jobs?sslrootcert=/etc/x@y.pem", "db/jobs?application_name=a@b&user=x@y"]
)
def test_an_option_may_hold_an_at_sign(rest: str) -> None:
    settings = DatabaseSettings.from_env({URL: f"postgresql://me:{SECRET}@{rest}"})
    assert settings.sqlalchemy_url().host == "db"


@pytest.mark.parametrize(
    "env",
    [
        {},
        {URL: ""},
        {URL: SECRET},
        {URL: f"mysql://me:{SECRET}@db/jobs"},
        {URL: f"postgresql://me:{SECRET}@db:port/jobs"},
        {URL: f"postgresql://me:p@{SECRET}@db/jobs"},
        {URL: f"postgresql://me:p@ss:{SECRET}@db/jobs"},
        {URL: f"postgresql://me:p@a/{SECRET}@db/jobs"},
        {URL: f"postgresql://me:p@a?{SECRET}@db/jobs"},
        {URL: f"postgresql://me:{SECRET}"},
        {URL: f"postgresql://me:{SECRET}@db/jobs", "MILLRACE_DATABASE_POOL_SIZE": "0"},
        {URL: f"postgresql://me:{SECRET}@db/jobs", "MILLRACE_DATABASE_POOLSIZE": "5"},
        {URL: f"postgresql://me:{SECRET}@db/jobs", "MILLRACE_DATABASE_LOCK_TIMEOUT_S": "0"},
    ],
)
def test_wrong_database_settings_stop_the_start(env: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="MILLRACE_DATABASE_") as wrong:
        DatabaseSettings.from_env(env)
    assert SECRET not in str(wrong.value)
    assert wrong.value.__cause__ is None


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"MILLRACE_OBJECTS_KIND": "local"},
        {"MILLRACE_OBJECTS_KIND": "ftp"},
        {"MILLRACE_OBJECTS_ROOT": "relative/folder"},
        {"MILLRACE_OBJECTS_KIND": "s3"},
        {**S3, "MILLRACE_S3_ENDPOINT_URL": "storage:9000"},
        {**S3, "MILLRACE_S3_ENDPOINT_URL": ""},
        {**S3, "MILLRACE_S3_ACCESS_KEY": SECRET},
        {**S3, "MILLRACE_S3_SECRET_KEY": SECRET},
        {**S3, "MILLRACE_S3_PART_BYTES": "1000"},
        {**S3, "MILLRACE_S3_SECRET": SECRET},
    ],
)
def test_wrong_object_store_settings_stop_the_start(env: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="MILLRACE_") as wrong:
        object_store_from_env(env)
    assert SECRET not in str(wrong.value)


def test_a_root_opens_a_folder(tmp_path: Path) -> None:
    store = object_store_from_env({"MILLRACE_OBJECTS_ROOT": str(tmp_path / "new" / "objects")})
    assert isinstance(store, LocalObjectStore)
    assert list(store.list("")) == []


def test_a_bucket_opens_s3() -> None:
    env = {**S3, "MILLRACE_S3_ACCESS_KEY": "me", "MILLRACE_S3_SECRET_KEY": SECRET}
    assert isinstance(object_store_from_env(env), S3ObjectStore)
    assert SECRET not in repr(S3Settings.from_env(env))
