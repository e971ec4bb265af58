"""The command line: `main`, and modules of commands.

Prints results to stdout and everything else to stderr; returns the exit status.
"""

import gc
import os

# OpenBLAS starts no threads: they take a fifth of numpy's import, and only fits, which are small, need it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# pydantic does not search every installed package for its plugins: simcoll has none.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
from simcoll.cli._group import main as main

# Rarer searches for garbage in cycles: with Python's default they are a tenth of a short command, and find nothing.
gc.set_threshold(50_000)
