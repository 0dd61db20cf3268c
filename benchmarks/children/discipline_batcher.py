"""`python -m benchmarks.children.discipline_batcher NAME`: the batcher with another order.

The bulk class only; online calls keep the fair order.
"""

import os
import sys

from batcher.__main__ import main
from benchmarks.children.disciplines import DISCIPLINES

if __name__ == "__main__":
    is_bulk = os.environ.get("MILLRACE_BATCHER_JOB_CLASS", "bulk") == "bulk"
    main(DISCIPLINES[sys.argv[1]]() if is_bulk else None)
