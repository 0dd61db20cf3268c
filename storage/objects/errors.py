"""Errors of object stores."""

from core.errors import Disposition, MillraceError


class ObjectKeyError(MillraceError):
    """The key cannot name an object."""

    code = "object_key_invalid"


class ObjectNotFoundError(MillraceError):
    """There is no object of that key."""

    code = "object_missing"
    disposition = Disposition.REJECT


class ObjectExistsError(MillraceError):
    """There is an object of that key already."""

    code = "object_exists"
    disposition = Disposition.REJECT


class ObjectTooLargeError(MillraceError):
    """The object has more parts than the store takes."""

    code = "object_too_large"
    disposition = Disposition.REJECT


class ObjectStoreFullError(MillraceError):
    """The object store is full."""

    code = "object_store_full"
    disposition = Disposition.RETRY


class ObjectStoreUnavailableError(MillraceError):
    """The object store does not answer, or asks to retry later."""

    code = "object_store_away"
    disposition = Disposition.RETRY


class ObjectStoreRefusedError(MillraceError):
    """The object store refused the request. Check its credentials, bucket, folder and rights."""

    code = "object_store_refused"


class UploadClosedError(MillraceError):
    """The upload is already completed or aborted."""

    code = "upload_closed"
