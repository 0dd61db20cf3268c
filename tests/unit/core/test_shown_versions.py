"""Goal: what a client reads names one version, whatever name it asked for."""

import pytest

from core.shown_versions import short_digest, version_in_full

DIGEST = "0f3c9a41d2e7" + "5" * 52


@pytest.mark.parametrize(
    ("model", "version", "shown"),
    [
        ("org/small", "7", "org/small@7"),
        ("org/small", DIGEST, f"org/small@{DIGEST}"),
        (f"org/small@{DIGEST[:12]}", DIGEST, f"org/small@{DIGEST}"),
        (f"org/small@{DIGEST}", DIGEST, f"org/small@{DIGEST}"),
        ("org/small@7", "7", "org/small@7"),
        ("a@b", DIGEST, f"a@b@{DIGEST}"),  # a name with an @
        ("small@", "7", "small@@7"),
    ],
)
def test_pinned_name_is_shown_with_the_version_once(model: str, version: str, shown: str) -> None:
    assert version_in_full(model, version) == shown


def test_only_digests_are_shortened() -> None:
    assert short_digest(DIGEST) == "0f3c9a41d2e7"
    for text in ("2026-01 best", DIGEST.upper(), DIGEST + "5", ""):
        assert short_digest(text) == text
