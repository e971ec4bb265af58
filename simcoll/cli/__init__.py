"""The command line: `main`, and one module a command, imported when the command is used.

Takes words, prints results to stdout and everything else to stderr. Gives the exit status.
"""

from simcoll.cli._deferred import defer

defer()  # before any library is loaded

from simcoll.cli._group import main as main  # noqa: E402
