"""Opens the object store that the settings name."""

from collections.abc import Mapping

from core.clock import SystemClock
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import ObjectStore
from storage.objects.s3_patience import NO_PATIENCE, UploadPatience
from storage.objects.settings import ObjectStoreSettings, S3Settings


def object_store_from_env(
    env: Mapping[str, str], *, patience: UploadPatience = NO_PATIENCE
) -> ObjectStore:
    """Read the settings and open the store; kind `local` reads no `MILLRACE_S3_` variable.

    `patience` is for uploads to a bucket. Raises SettingsError.
    """
    settings, clock = ObjectStoreSettings.from_env(env), SystemClock()
    if settings.kind == "s3":
        # boto3 is a fifth of a role's imports, and most stores are local.
        from storage.objects.s3_object_store import S3ObjectStore

        return S3ObjectStore(S3Settings.from_env(env), clock=clock, patience=patience)
    assert settings.root is not None  # validated for this kind
    return LocalObjectStore(settings.root, clock=clock)
