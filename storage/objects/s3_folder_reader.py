"""Reads objects that others wrote to a bucket: all keys below a prefix, whatever their names."""

from dataclasses import dataclass
from typing import Final

from storage.objects.errors import ObjectNotFoundError
from storage.objects.object_store import ObjectBlocks
from storage.objects.s3_errors import translate_s3_errors
from storage.objects.s3_object_store import s3_client
from storage.objects.settings import S3Settings

_PAGE_SIZE: Final = 1000  # the protocol's largest


@dataclass(frozen=True, slots=True)
class ListedFile:
    """An object below the prefix."""

    path: str  # its key without the prefix
    size: int  # bytes
    etag: str  # changes with the content


class S3FolderReader:
    """The objects below a prefix of any bucket; nothing is written."""

    def __init__(self, settings: S3Settings, prefix: str) -> None:
        """`settings` name the bucket. `prefix` counts as a folder, with or without a last `/`."""
        self._client = s3_client(settings)
        self._bucket = settings.bucket
        folder = prefix.strip("/")
        self._prefix = f"{folder}/" if folder else ""

    def list_files(self, count_max: int) -> list[ListedFile]:
        """Return the objects, at most `count_max` + 1, by path; markers of folders do not count.

        Raises ObjectStoreUnavailableError, ObjectStoreRefusedError.
        """
        found: list[ListedFile] = []
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._prefix, PaginationConfig={"PageSize": _PAGE_SIZE}
        )
        with translate_s3_errors(self._prefix):
            for page in pages:
                for entry in page.get("Contents", ()):
                    path = entry["Key"].removeprefix(self._prefix)
                    if path and not path.endswith("/"):
                        found.append(ListedFile(path, entry["Size"], entry["ETag"]))
                if len(found) > count_max:
                    break
        return sorted(found[: count_max + 1], key=lambda file: file.path)

    def read(self, file: ListedFile, *, offset: int = 0) -> ObjectBlocks:
        """Return the content of a listed object from a position on.

        Raises ObjectNotFoundError, also for an object that changed since it was listed,
        ObjectStoreUnavailableError, ObjectStoreRefusedError.
        """
        key = self._prefix + file.path
        with translate_s3_errors(key):
            try:
                answer = self._client.get_object(
                    Bucket=self._bucket, Key=key, IfMatch=file.etag, Range=f"bytes={offset}-"
                )
            except self._client.exceptions.ClientError as error:
                if error.response.get("Error", {}).get("Code") in {"412", "PreconditionFailed"}:
                    raise ObjectNotFoundError(
                        "The object changed while it was read.", key=key
                    ) from None
                raise
        body = answer["Body"]

        def read(size: int) -> bytes:
            with translate_s3_errors(key):
                return body.read(size)

        return ObjectBlocks(read, body.close, file.size - offset)
