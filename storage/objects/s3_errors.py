"""Translates botocore's errors, which must not leave the S3 modules."""

import contextlib
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Final

from botocore import exceptions

from core.errors import MillraceError
from storage.objects import metrics
from storage.objects.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStoreFullError,
    ObjectStoreRefusedError,
    ObjectStoreUnavailableError,
)


class S3ConflictError(ObjectStoreUnavailableError):
    """Another conditional request on the same key is in progress."""


class S3UploadNotFoundError(ObjectStoreUnavailableError):
    """The multipart upload is already complete, or was swept."""


class S3RangeError(MillraceError):
    """The range starts past the end of the object."""

    code = "object_range_past_end"


_BY_CODE: Final[Mapping[str, type[MillraceError]]] = {
    "404": ObjectNotFoundError,  # of HEAD, whose response has no body with a code
    "NoSuchKey": ObjectNotFoundError,
    "412": ObjectExistsError,
    "PreconditionFailed": ObjectExistsError,
    "409": S3ConflictError,
    "ConditionalRequestConflict": S3ConflictError,
    "NoSuchUpload": S3UploadNotFoundError,
    "416": S3RangeError,
    "InvalidRange": S3RangeError,
    "RequestTimeout": ObjectStoreUnavailableError,  # 400: the request body was too slow
    "SlowDown": ObjectStoreUnavailableError,
    "QuotaExceeded": ObjectStoreFullError,
    "XMinioStorageFull": ObjectStoreFullError,
}

_UNAVAILABLE: Final = (
    exceptions.HTTPClientError,
    exceptions.ConnectionError,
    exceptions.IncompleteReadError,
    exceptions.MetadataRetrievalError,
)
_REFUSED: Final = (
    exceptions.NoCredentialsError,
    exceptions.PartialCredentialsError,
    exceptions.CredentialRetrievalError,
)


@contextlib.contextmanager
def translate_s3_errors(key: str) -> Iterator[None]:
    """Translate botocore's errors. An error that is not known to be temporary is a refusal."""
    try:
        yield
    except exceptions.ClientError as error:
        translated = _translated(error, key)
        if type(translated) is ObjectStoreUnavailableError:
            metrics.UNAVAILABLE.inc()
        raise translated from error
    except _UNAVAILABLE as error:
        metrics.UNAVAILABLE.inc()
        raise ObjectStoreUnavailableError(key=key) from error
    except _REFUSED as error:
        raise ObjectStoreRefusedError(key=key) from error


def _translated(error: exceptions.ClientError, key: str) -> MillraceError:
    s3_code = error.response.get("Error", {}).get("Code", "")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if s3_code in _BY_CODE:
        return _BY_CODE[s3_code](key=key)
    if status == HTTPStatus.INSUFFICIENT_STORAGE:
        return ObjectStoreFullError(key=key)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
        return ObjectStoreUnavailableError(key=key, s3_code=s3_code)
    return ObjectStoreRefusedError(key=key, s3_code=s3_code)
