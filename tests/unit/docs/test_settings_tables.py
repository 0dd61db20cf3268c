"""Goal: docs/operations.md lists every setting with its default, and none that is gone."""

import re
from pathlib import Path

from pydantic.fields import FieldInfo

from cli.stack.processes.inherited_env import PASSED_ON
from tests.unit.docs.settings_classes import settings_classes

PAGE = Path(__file__).parents[3] / "docs/operations.md"
ROW = re.compile(r"^\| `(MILLRACE_[A-Z0-9_]+)` \| ([^|]*) \| ([^|]+) \|$", re.M)


def shown_default(name: str, field: FieldInfo) -> str:
    """Return the cell of a default as the page writes it."""
    value = field.get_default(call_default_factory=True)
    if field.is_required():
        return "required"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value) if name.endswith("port") else f"{value:,}"
    if isinstance(value, float):
        return f"{value:,g}"
    if isinstance(value, tuple):
        return f"`{','.join(map(str, value))}`"
    return f"`{value}`" if value else "empty"


def test_every_setting_is_listed_once_with_its_default() -> None:
    rows = ROW.findall(PAGE.read_text())
    listed = {name: default for name, default, _ in rows}
    wanted = {
        cls.env_prefix + name.upper(): shown_default(name, field)
        for cls in settings_classes()
        for name, field in cls.model_fields.items()
    }

    assert len(rows) == len(listed)
    assert listed == wanted


def test_every_setting_has_a_meaning() -> None:
    assert [name for name, _, meaning in ROW.findall(PAGE.read_text()) if len(meaning) < 5] == []


def test_no_page_names_a_setting_that_does_not_exist() -> None:
    """Variables of the command line and of compose's own stand beside the settings."""
    known = {
        cls.env_prefix + name.upper() for cls in settings_classes() for name in cls.model_fields
    }
    known |= {"MILLRACE_URL", "MILLRACE_KEY", "MILLRACE_OPERATOR_KEY", "MILLRACE_CACHE", PASSED_ON}
    named = {
        name
        for path in [*PAGE.parent.rglob("*.md"), PAGE.parents[1] / "README.md"]
        for name in re.findall(r"\bMILLRACE_[A-Z0-9_]*[A-Z0-9]\b(?!_?…)", path.read_text())
    }

    assert named - known == set()
