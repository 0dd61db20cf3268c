"""Goal: docs/audit_log.md names every action, none that is gone, and the form of a hash."""

import re
from pathlib import Path

from tenancy import audit_log
from tenancy.audit_log import Action

PAGE = (Path(__file__).parents[3] / "docs/audit_log.md").read_text()


def test_every_action_is_listed_once() -> None:
    cells = re.findall(r"^\| (`[a-z_]+\.[^|]+) \|", PAGE, re.M)
    named = [name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)]

    assert sorted(named) == sorted(action.value for action in Action)


def test_the_form_of_a_hash_is_published() -> None:
    assert f'["{audit_log._FORM}", hash before, tenant,' in PAGE
    assert f"`{audit_log._FORM} TENANT`" in PAGE
