"""`simcoll completion`: the script by which a shell completes commands, options and names."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

from simcoll.errors import InputError

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands in bash, zsh or fish.

    For good: `eval "$(simcoll completion bash)"` in ~/.bashrc, the same with zsh in ~/.zshrc, `simcoll completion fish
    | source` in ~/.config/fish/config.fish.
    """
    if shell == "zsh":  # without it there is no `compdef` to register with
        print("(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -u; }")
    print(_asking(shell).source())


def completed(shell: str) -> str:
    """The words that complete what was typed, which the shell hands over by variables. Raises InputError."""
    return _asking(shell).complete()


def _asking(shell: str) -> ShellComplete:
    from simcoll.cli._group import COMPLETE, cli

    known = get_completion_class(shell)
    if known is None:
        raise InputError(f"{shell} is not completed here", f"choose one of {', '.join(SHELLS)}")
    return known(cli, {}, "simcoll", COMPLETE)
