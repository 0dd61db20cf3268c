"""`python -m benchmarks.children.role_stack ROLE ARGUMENT up …`: `millrace up` with another role.

The role runs a module of `benchmarks.children` with the argument; all others are the same.
"""

import sys

from benchmarks.stacks.stack import REPLACED
from cli import main
from cli.stack.processes import role_children

if __name__ == "__main__":
    role, argument = sys.argv.pop(1), sys.argv.pop(1)
    module = next(name for name, replaced in REPLACED.items() if replaced == role)
    role_children.MODULES = {**role_children.MODULES, role: (module, argument)}
    main.main()
