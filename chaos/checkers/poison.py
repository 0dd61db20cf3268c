"""P13: exactly the poison fails, with the right code."""

from collections.abc import Mapping


def unexpected_failures(wanted: Mapping[str, str], failed: Mapping[str, str]) -> dict[str, str]:
    """Return items whose end is not the one they had to have, with what happened.

    Both map a custom id to the code of its failure; items in neither must succeed.
    """
    wrong = {
        item: f"{failed.get(item, 'succeeded')} instead of {code}"
        for item, code in wanted.items()
        if failed.get(item) != code
    }
    return wrong | {
        item: f"{code} instead of success" for item, code in failed.items() if item not in wanted
    }
