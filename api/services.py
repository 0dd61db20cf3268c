"""What every route needs, built once in `__main__` and handed over by the application."""

from dataclasses import dataclass, field
from typing import Final

from fastapi import Request

from api.auth import KeyCache
from api.database import Database
from api.settings import ApiSettings
from api.turns import Turns
from storage.objects import ObjectStore

_REDRIVES_MAX: Final = 4
"""Redrives at once: each writes a file in one of the threads that read and write objects."""


class UploadSlots:
    """How many uploads may run at once in this process."""

    def __init__(self, count: int) -> None:
        """`count` are free."""
        self._free = count

    def take(self) -> bool:
        """Take one; False when none is free."""
        if self._free == 0:
            return False
        self._free -= 1
        return True

    def give_back(self) -> None:
        """Return one that was taken."""
        self._free += 1


@dataclass(frozen=True, slots=True)
class Services:
    """Settings and clients of one API process."""

    settings: ApiSettings
    database: Database
    objects: ObjectStore
    keys: KeyCache
    upload_slots: UploadSlots
    redrives: Turns = field(default_factory=lambda: Turns("redrives", _REDRIVES_MAX))


def services_of(request: Request) -> Services:
    """Return the services of the application that `request` reached."""
    services = request.app.state.services
    assert isinstance(services, Services)
    return services
