"""Every settings class of the project."""

from functools import cache
from importlib import import_module
from pathlib import Path

from core.settings import Settings

ROOT = Path(__file__).parents[3]


@cache
def settings_classes() -> tuple[type[Settings], ...]:
    """Return the classes of all modules `settings` and `…_settings`, by their variables' prefix."""
    found: list[type[Settings]] = []
    rooms = [path.parent for path in ROOT.glob("*/__init__.py")]
    for path in sorted(p for room in rooms for p in room.rglob("*settings.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found += [
            value
            for value in vars(import_module(name)).values()
            if isinstance(value, type)
            and issubclass(value, Settings)
            and value.__module__ == name
            and value is not Settings
        ]
    return tuple(sorted(found, key=lambda cls: cls.env_prefix))
