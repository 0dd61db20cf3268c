"""Opens the object store that the settings name."""

from collections.abc import Mapping

from core.clock import Clock, SystemClock
from core.errors import SettingsError
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import ObjectStore
from storage.objects.settings import ObjectStoreSettings, S3Settings


def object_store_from_env(env: Mapping[str, str]) -> ObjectStore:
    """Read the settings and open the store; kind `local` reads no `MILLRACE_S3_` variable.

    Raises SettingsError.
    """
    objects = ObjectStoreSettings.from_env(env)
    s3 = S3Settings.from_env(env) if objects.kind == "s3" else None
    return open_object_store(objects, s3, clock=SystemClock())


def open_object_store(
    objects: ObjectStoreSettings, s3: S3Settings | None, *, clock: Clock
) -> ObjectStore:
    """Open the store of `objects.kind`; only kind `s3` needs `s3`."""
    if objects.kind == "s3":
        if s3 is None:
            raise SettingsError("kind s3 needs the S3 settings")
        # boto3 is a fifth of a role's imports, and most stores are local.
        from storage.objects.s3_object_store import S3ObjectStore

        return S3ObjectStore(s3, clock=clock)
    if objects.root is None:
        raise SettingsError("kind local needs root")
    return LocalObjectStore(objects.root, clock=clock)
