"""The encryption key of a stack's webhook secrets, stored in its data folder."""

import base64
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cli.stack.state.private_files import write_private
from results.webhooks.settings import KEY_BYTES, WebhookSettings

ROLES: Final = frozenset({"api", "webhooks"})
"""The roles that read the variables."""

_KEY: Final = f"{WebhookSettings.env_prefix}SECRET_KEY"
_PRIVATE: Final = f"{WebhookSettings.env_prefix}ALLOW_PRIVATE"


def webhook_env(data: Path, env: Mapping[str, str], *, allow_private: bool) -> dict[str, str]:
    """Return the webhook variables of a stack. A key in `env` takes precedence."""
    variables = {} if _KEY in env else {_KEY: _saved_key(data / "webhook-key")}
    return {**variables, _PRIVATE: "true"} if allow_private else variables


def _saved_key(path: Path) -> str:
    """Return the key in `path`, created if absent. Without it no stored secret can be decrypted."""
    if not path.exists():
        write_private(path, base64.b64encode(secrets.token_bytes(KEY_BYTES)))
    return path.read_text().strip()
