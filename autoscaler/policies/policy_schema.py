"""The JSON schema of a scaling policy file, made from the structs.

`python -m autoscaler.policies.policy_schema` prints it; it is kept in `scaling.schema.json` for
editors. It covers types and ranges, and not what `policy_checks` compares.
"""

import json
import sys
from typing import Any, Final

import msgspec

from autoscaler.policies.pool_policy import ScalingFile

SCHEMA_NAME: Final = "scaling.schema.json"
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema_text() -> str:
    """Return the schema as the file has it."""
    schema: dict[str, Any] = {"$schema": _DIALECT, **msgspec.json.schema(ScalingFile)}
    return json.dumps(msgspec.to_builtins(schema), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
