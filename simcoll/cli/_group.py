"""The command line. stdout gets the result, stderr everything else.

Exit status: 0 good; 1 the answer is no or the run failed; 2 wrong input; 130 interrupted. All commands and `simcoll
--help` start fast: a module of commands is imported when one of them runs, and heavy imports are inside the functions
of commands. Each command is a few library calls.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import click
from click.shell_completion import ShellComplete, get_completion_class

from simcoll import __version__
from simcoll.cli._terminal import PLAIN, escaped
from simcoll.errors import NO_MEMORY, InputError, SimcollError, shortened

COMPLETE: Final = "_SIMCOLL_COMPLETE"  # environment variable by which click's shell scripts ask for completions
COMMANDS: Final = {  # name: its module and function in `simcoll.cli`, and the first line of its help
    "run": ("run.run", "Simulate a scenario (a YAML file, or the name of a shipped one)."),
    "predict": ("run.predict", "Predict one collective without a scenario file."),
    "plot": ("plot.plot", "Plot a results.csv again."),
    "explain": (
        "explain.explain",
        "Explain why a scenario, or a collective, takes as long as it does, and what would make it faster.",
    ),
    "recommend": (
        "recommend.recommend",
        "Recommend the best algorithm, protocol and settings for a scenario, or a collective, by ranges of sizes.",
    ),
    "compare": (
        "measured_table_commands.compare",
        "Compare predictions with a measured table, or with nccl-tests' text.",
    ),
    "steps": ("measured_table_commands.steps", "Predict each row of a table of published training steps."),
    "diagnose": ("measured_table_commands.diagnose", "Check whether measured times are as this hardware should give."),
    "calibrate": (
        "measured_table_commands.calibrate",
        "Fit parameters of the model to measured tables, and write a profile.",
    ),
    "tune": ("tune.tune", "Print the costs that NCCL's tuner computes on a system, and its choices."),
    "measure": ("measure.measure", "Run a scenario for real, over gloo or NCCL, and write a measured table."),
    "lab": (
        "measure.lab",
        "Run a scenario for real between hosts made on this machine, with links as slow as it says.",
    ),
    "dryrun": ("dryrun.dryrun", "Predict the step of a PyTorch training script without GPUs."),
    "validate": ("measured_table_commands.validate", "Measure, fit, predict, and report how good predictions are."),
    "import": (
        "convert.import_",
        "Turn a file of another program into one of simcoll, and list what was read and assumed.",
    ),
    "export": ("convert.export", "Write a schedule, a topology or results for another program."),
    "show": ("catalog.show", "Show the transfers, counts and data of an algorithm."),
    "synthesize": (
        "synthesize.synthesize",
        "Make a schedule for a network, with the bound of its throughput and the proof of both.",
    ),
    "verify": ("catalog.verify", "Prove that schedules do what their collectives promise."),
    "list": ("catalog.list_", "List what simcoll knows."),
    "topology": ("catalog.topology", "List and show topologies."),
    "completion": ("_group.completion", "Print the script that completes commands in bash, zsh or fish."),
    "schema": ("catalog.schema", "Print the JSON Schema of scenario files, or of results as JSON."),
}
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
    """A click group that knows the names and help texts of all commands, and imports a command when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(".")
        command: Any = getattr(importlib.import_module(f"simcoll.cli.{module}"), attribute)
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in OF_RUN:
            ctx.fail(f"no such command {args[0]!r}; did you mean `simcoll run SCENARIO --{args[0]} PATH`?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


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
