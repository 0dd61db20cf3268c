"""What can go wrong with an object store, and whose fault it is."""

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
    """The object store has no room left."""

    code = "object_store_full"
    disposition = Disposition.RETRY


class ObjectStoreUnavailableError(MillraceError):
    """The object store does not answer, or asks to come back later."""

    code = "object_store_away"
    disposition = Disposition.RETRY


class ObjectStoreRefusedError(MillraceError):
    """The object store refused the request: credentials, bucket, folder or rights are wrong."""

    code = "object_store_refused"


class UploadClosedError(MillraceError):
    """The upload was completed or aborted before."""

    code = "upload_closed"
