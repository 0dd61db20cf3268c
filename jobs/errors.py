"""Errors of requests about files, batches and jobs; clients see the docstring as the message."""

from typing import ClassVar
from uuid import UUID

from core.errors import Disposition, MillraceError


class InvalidRequestError(MillraceError):
    """The request is not valid."""

    code: ClassVar[str] = "invalid_request"
    disposition = Disposition.REJECT

    def __init__(self, message: str | None = None, *, param: str | None = None) -> None:
        """`param` names the field that is not valid."""
        super().__init__(message)
        self.param = param


class InvalidFieldError(InvalidRequestError):
    """A field of the request is not valid."""

    code = "invalid_value"


class UploadedFileNotFoundError(InvalidRequestError):
    """No such file."""

    code = "file_not_found"


class JobNotFoundError(InvalidRequestError):
    """No such batch."""

    code = "batch_not_found"


class DeadLetterNotFoundError(InvalidRequestError):
    """No such dead letter."""

    code = "dead_letter_not_found"


class DeadLettersRedrivenError(DeadLetterNotFoundError):
    """All dead letters of the batch were redriven already; name some to redrive them again."""


class InputFileRemovedError(InvalidRequestError):
    """The input file of the batch is no longer stored."""

    code = "input_gone"


class JobEndedError(InvalidRequestError):
    """The batch has ended, so it cannot be cancelled."""

    code = "batch_ended"


class JobNotEndedError(InvalidRequestError):
    """The batch has not ended, so it cannot be deleted. Cancel it first, or wait for its end."""

    code = "batch_not_ended"


class QuotaExceededError(InvalidRequestError):
    """Your organization has reached a quota. Retrying does not help."""


class OpenBatchLimitError(QuotaExceededError):
    """Your organization has reached its limit of open batches. Wait for some to end."""

    code = "batch_limit_exceeded"


class FileCountLimitError(QuotaExceededError):
    """Your organization has reached its limit of uploaded files. Delete some first."""

    code = "file_limit_exceeded"


class StorageLimitError(QuotaExceededError):
    """Your organization has reached its limit of stored bytes. Delete some files first."""

    code = "storage_limit_exceeded"


class RequestNotFoundError(JobNotFoundError):
    """No such job."""

    code = "job_not_found"


class RequestEndedError(JobEndedError):
    """The job has ended, so it cannot be cancelled."""

    code = "job_ended"


class IdempotencyKeyInFlightError(InvalidRequestError):
    """A request with this idempotency key is in progress. Try again."""

    code = "idempotency_key_in_flight"

    def __init__(self, job_id: UUID | None = None) -> None:
        """`job_id` is the call in progress, if that is one."""
        super().__init__()
        self.job_id = job_id


class IdempotencyKeyReusedError(InvalidRequestError):
    """This idempotency key was used for a different request. Use a new key."""

    code = "idempotency_key_reused"

    def __init__(self, job_id: UUID | None = None) -> None:
        """`job_id` is a call without an answer yet: the key becomes free if it fails."""
        super().__init__()
        self.job_id = job_id


class JobNotOpenError(InvalidRequestError):
    """The batch has ended or is closing, so it cannot be changed."""

    code = "batch_not_open"


class JobSealedError(InvalidRequestError):
    """The batch is sealed, so it accepts no more files."""

    code = "batch_sealed"
