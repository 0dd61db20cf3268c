"""The form fields of an upload."""

import re
from dataclasses import dataclass
from typing import Final

from api.http.multipart import FormRefusedError
from jobs.store.files import (
    EXPIRES_AFTER_S_MAX,
    EXPIRES_AFTER_S_MIN,
    INPUT_EXPIRES_AFTER_S,
    INPUT_PURPOSE,
    UPLOAD_PURPOSES,
)

_ANCHOR: Final = "expires_after[anchor]"
_SECONDS: Final = "expires_after[seconds]"
_NUMBER: Final = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class UploadFields:
    """The validated fields of an upload."""

    purpose: str
    expires_after_s: int | None  # None: the file does not expire


def upload_fields(fields: dict[str, str]) -> UploadFields:
    """Validate the fields of a form; unknown ones are ignored. Raises FormRefusedError."""
    purpose = fields.get("purpose")
    if purpose is None:
        raise FormRefusedError("The form has no purpose.", param="purpose")
    if purpose not in UPLOAD_PURPOSES:
        raise FormRefusedError(
            f"The purpose must be one of {', '.join(UPLOAD_PURPOSES)}.", param="purpose"
        )
    expires_after_s = _expires_after_s(fields)
    if expires_after_s is None and purpose == INPUT_PURPOSE:
        expires_after_s = INPUT_EXPIRES_AFTER_S
    return UploadFields(purpose, expires_after_s)


def _expires_after_s(fields: dict[str, str]) -> int | None:
    anchor, seconds = fields.get(_ANCHOR), fields.get(_SECONDS)
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise FormRefusedError("The anchor must be 'created_at'.", param=_ANCHOR)
    if seconds is None or not _NUMBER.fullmatch(seconds):
        raise FormRefusedError("The value must be a number of seconds.", param=_SECONDS)
    if not EXPIRES_AFTER_S_MIN <= int(seconds) <= EXPIRES_AFTER_S_MAX:
        raise FormRefusedError(
            f"The value must be {EXPIRES_AFTER_S_MIN} to {EXPIRES_AFTER_S_MAX} seconds.",
            param=_SECONDS,
        )
    return int(seconds)
