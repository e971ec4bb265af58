"""The command line: `main`, and modules of commands, each imported when one of its commands is used.

Takes words, prints results to stdout and everything else to stderr. Gives the exit status.
"""

import os

# numpy's linear algebra, of which only fits have small problems, starts no threads: they take a fifth of its import.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from simcoll.cli._group import main as main
