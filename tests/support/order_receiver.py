"""The operator's side of the actuators `command` and `webhook`: carries out orders in a JSON file.

Run as a script it is such a command: `order_receiver.py FILE`. It uses the standard library alone.
"""

import fcntl
import json
import sys
import time
from pathlib import Path
from typing import Any

EXITS = {"stale_epoch": 3, "actuator_denied": 4, "actuator_conflict": 5, "foreign_scaler": 5}


def new_state(pools: list[str]) -> dict[str, Any]:
    """Return the state of a platform that runs nothing yet."""
    empty = {"epoch": 0, "sequence": 0, "actuator": "", "kinds": []}
    return {"fault": None, "writes": 0, "pools": {pool: dict(empty) for pool in pools}}


def carry_out(state: dict[str, Any], message: dict[str, Any]) -> tuple[str | None, Any]:
    """Return the code of the refusal, if any, and the answer. Changes `state`."""
    name, actuator = message["pool"], message["actuator"]
    pool = state["pools"].get(name)
    if pool is None:
        return "unknown_pool", {"code": "unknown_pool"}
    if pool["actuator"] not in ("", actuator):
        return "foreign_scaler", {"code": "foreign_scaler"}
    if message["action"] == "apply":
        if message["epoch"] < pool["epoch"]:
            return "stale_epoch", {"code": "stale_epoch"}
        if message["epoch"] == pool["epoch"] and message["sequence"] < pool["sequence"]:
            return "actuator_conflict", {"code": "actuator_conflict"}
        if pool["kinds"] != message["kinds"]:
            state["writes"] += 1
        pool.update(
            epoch=message["epoch"],
            sequence=message["sequence"],
            actuator=actuator,
            kinds=message["kinds"],
        )
    return None, {"pool": name, **pool}


def main(path: Path) -> int:
    message = json.load(sys.stdin)
    with path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        state = json.load(file)
        if state["fault"] == "hang":
            fcntl.flock(file, fcntl.LOCK_UN)
            time.sleep(3_600)
        if state["fault"] == "absurd":
            sys.stdout.write(
                json.dumps({"pool": message["pool"], "epoch": 1, "kinds": [{"replicas": -5}]})
            )
            return 0
        if state["fault"] in ("denied", "conflict"):
            return {"denied": 4, "conflict": 5}[state["fault"]]
        code, answer = carry_out(state, message)
        file.seek(0)
        file.truncate()
        json.dump(state, file)
    sys.stdout.write(json.dumps(answer))
    return 0 if code is None else EXITS.get(code, 1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
