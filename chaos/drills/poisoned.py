"""P13: items that crash, freeze, hang or exhaust their replica fail alone."""

import random
import time
from typing import Final

from chaos import evidence
from chaos.clients import input_lines
from chaos.drills.books import Ended, judge_books
from chaos.drills.setting import MODEL, Setting
from chaos.failures import DrillError
from chaos.judges.poison import wrongly_failed
from chaos.measures import Measure
from chaos.settings_of_drills import POISON

ITEMS: Final = 5000
TRIES_MAX: Final = 3
JOB_S_MAX: Final = 480.0


def run(setting: Setting) -> list[Measure]:
    """Run a job with poison at seeded places."""
    count = setting.size(20, 6)
    chance = random.Random(setting.seed)
    places = chance.sample(range(ITEMS), count)
    faults = {place: list(POISON)[number % len(POISON)] for number, place in enumerate(places)}
    texts = {place: f"POISON-{fault}" for place, fault in faults.items()}
    client = setting.client("poison")
    (host,) = setting.running.hosts.values()
    deaths = host.deaths()
    until_s = time.monotonic() + JOB_S_MAX
    key = f"poison-{setting.seed}"
    file_id = client.upload(f"file-{key}", input_lines(ITEMS, MODEL, texts), until_s)
    job = client.create(key, file_id, until_s)
    ended = client.await_ends([job["id"]], until_s)
    if not ended:
        raise DrillError(f"not terminal with poison: {evidence.stuck(setting.running.engine)}")
    (job,) = ended.values()
    failed = evidence.Files(client, job).error_codes()
    wanted = {f"item-{place}": POISON[fault] for place, fault in faults.items()}
    wrong = wrongly_failed(wanted, failed)
    return [
        Measure(
            promise="P13",
            what="items that ended otherwise than they had to",
            value=len(wrong),
            size=ITEMS,
            evidence=str(dict(list(wrong.items())[:5])) if wrong else "",
        ),
        Measure(
            promise="P13",
            what="starts of the replica for each item of poison",
            value=(host.deaths() - deaths) / count,
            limit=TRIES_MAX,
            size=count,
        ),
        *judge_books(setting.running.engine, client, [Ended(job, ITEMS)]),
    ]
