"""The command line. stdout gets the result, stderr everything else.

Exit status: 0 good; 1 the answer is no or the run failed; 2 wrong input; 130 interrupted. All commands and `simcoll
--help` start fast: heavy imports are inside the functions of commands. Each command is a few library calls.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Final

import click
from click.shell_completion import ShellComplete, get_completion_class

from simcoll import __version__
from simcoll.cli import catalog, convert, dryrun, explain, measure, plot, recommend, run, synthesize, tune
from simcoll.cli import measured_table_commands as measured
from simcoll.cli._terminal import PLAIN, escaped
from simcoll.errors import NO_MEMORY, InputError, SimcollError, shortened

COMPLETE: Final = "_SIMCOLL_COMPLETE"  # environment variable by which click's shell scripts ask for completions
OF_RUN: Final = ("report", "trace")  # options of `run` that people try as commands


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    if argv is None:
        _start_in_utf8()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=PLAIN)  # if the locale lacks "→", print "->"
    sys.stdout, sys.stderr = escaped(sys.stdout), escaped(sys.stderr)
    try:
        if asked := os.environ.get(COMPLETE):
            print(_asking(asked.partition("_")[0]).complete(), flush=True)
            return 0
        words = list(sys.argv[1:] if argv is None else argv)
        _check_text(words)
        with cli.make_context("simcoll", words) as context:
            status = cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as done:  # --help, --version
        return done.exit_code
    except click.UsageError as error:
        print(_usage(error), file=sys.stderr)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return 130
    except SimcollError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    except MemoryError:
        print(NO_MEMORY, file=sys.stderr)
        return 1
    except OSError as error:  # a full disk, or a file that vanished
        print(f"{error.filename or 'stdout'}: {error.strerror or error}", file=sys.stderr)
        _drop_output()
        return 1
    return status if isinstance(status, int) else 0


def _start_in_utf8() -> None:
    """Restart this command in Python's UTF-8 mode if the locale is ASCII. Without it Python cannot name files with
    umlauts, and keeps such arguments as bytes that no text can hold."""
    if sys.getfilesystemencoding() == "ascii" and sys.executable:
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def _check_text(words: Sequence[str]) -> None:
    """Raise InputError for an argument that is not UTF-8: Python keeps its raw bytes, which no output can hold."""
    for word in words:
        shown = os.fsencode(word).decode("utf-8", "replace")
        if shown != word:
            cure = "write it in UTF-8; give files names in UTF-8, or link to them by such names"
            raise InputError(f"{shown!r} is no text in UTF-8", cure)


def _usage(error: click.UsageError) -> str:
    """Return the text of a usage error: the mistake, its fix, and the usage of the command."""
    context, problem = error.ctx, error.format_message().rstrip(".")
    if context is None or problem.startswith("Usage"):  # a group without a command shows its help
        return problem
    command = context.command_path
    cure = "" if problem.endswith("?") else f"; `{command} --help` says more"
    problem = shortened(problem)
    return f"{command}: {problem[:1].lower()}{problem[1:]}{cure}\n{context.get_usage()}"


def _drop_output() -> None:
    """Discard the buffered output of a broken stdout; Python would try to write it at exit, and fail again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Commands(click.Group):
    """A click group that lists commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in OF_RUN:
            ctx.fail(f"no such command {args[0]!r}; did you mean `simcoll run SCENARIO --{args[0]} PATH`?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(limit=1000)) for name, each in self.commands.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="simcoll")
def cli() -> None:
    """Simulate collective algorithms on GPU clusters: how long, how fast, and which link binds.

    Start with `simcoll run quickstart`.
    """


SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands in bash, zsh or fish.

    For good: `eval "$(simcoll completion bash)"` in ~/.bashrc, the same with zsh in ~/.zshrc, `simcoll completion fish
    | source` in ~/.config/fish/config.fish.
    """
    if shell == "zsh":  # otherwise `compdef`, which registers completions, is missing
        print("(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -u; }")
    print(_asking(shell).source())


def _asking(shell: str) -> ShellComplete:
    known = get_completion_class(shell)
    if known is None:
        raise InputError(f"there is no completion for {shell}", f"choose one of {', '.join(SHELLS)}")
    return known(cli, {}, "simcoll", COMPLETE)


COMMANDS: Final = (  # in the order in which `simcoll --help` lists them
    *(run.run, run.predict, plot.plot, explain.explain, recommend.recommend),
    *(measured.compare, measured.steps, measured.diagnose, measured.calibrate),
    *(tune.tune, measure.measure, measure.lab, dryrun.dryrun, measured.validate, convert.import_, convert.export),
    *(catalog.show, synthesize.synthesize, catalog.verify, catalog.list_, catalog.topology, completion, catalog.schema),
)
for _command in COMMANDS:
    cli.add_command(_command)
