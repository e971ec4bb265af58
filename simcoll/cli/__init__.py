"""The command line: `main`, and modules of commands, each imported when one of its commands runs.

Prints results to stdout and everything else to stderr; returns the exit status.
"""

import os

# OpenBLAS starts no threads: they take a fifth of numpy's import, and only fits, which are small, need it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from simcoll.cli._group import main as main
