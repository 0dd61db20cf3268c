"""Refuses secrets on the command line: every user of the machine can read the process list."""

import re
from typing import Final

from core.errors import SettingsError

_NAME: Final = re.compile(
    r"(?:^|[_.-])(?:api_?key|(?:secret_|salt_|access_|private_)?key|token|password|passwd|secret|"
    r"credentials?)$",
    re.IGNORECASE,
)
_VALUE: Final = re.compile(
    r"(?:^|[=:\"'\s,])(?:"
    r"(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}"  # OpenAI, Stripe, and ours
    r"|hf_[A-Za-z0-9]{16,}"
    r"|gh[a-z]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|xox[a-z]-[\w-]{10,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"  # a JSON Web Token
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r")"
)
_PASSWORD_IN_URL: Final = re.compile(r"://[^/@\s]*:[^/@\s]+@")
_SECRET_IN_QUERY: Final = re.compile(r"[?&;](?:[\w-]*key|token|password|secret)=", re.IGNORECASE)


def refuse_secret(option: str, text: str) -> None:
    """Raise SettingsError, without the value, if the text of an option is or names a secret.

    `text` is a value, or NAME=VALUE.
    """
    name, equals, _ = text.partition("=")
    is_named = bool(equals) and _NAME.search(name.strip()) is not None
    forms = (_VALUE, _PASSWORD_IN_URL, _SECRET_IN_QUERY)
    if is_named or any(form.search(text) for form in forms):
        shown = f"{option} {name}" if is_named else option
        raise SettingsError(
            f"{shown}: other users can read command lines; give secrets by a variable such as "
            "MILLRACE_ENGINE_UPSTREAM_API_KEY"
        )
