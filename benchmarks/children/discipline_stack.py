"""`python -m benchmarks.children.discipline_stack NAME up …`: `millrace up` with another order.

Its batchers are `benchmarks.children.discipline_batcher`; all other roles are the same.
"""

import sys

from cli import main
from cli.stack.processes import role_children

MODULE = "benchmarks.children.discipline_batcher"

if __name__ == "__main__":
    name = sys.argv.pop(1)
    role_children.MODULES = {**role_children.MODULES, "batcher": (MODULE, name)}
    main.main()
