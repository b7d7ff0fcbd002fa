"""`querator completion`: the commands and options, for a shell."""

import click
from click.shell_completion import get_completion_class

_VARIABLE = "_QUERATOR_COMPLETE"
"""click reads this variable when the shell asks for completions."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Write a script that completes commands, options and their values in bash (4.4 or newer), zsh
    or fish.

    The shell starts `querator` for each completion, so it must be in the PATH.

    \b
    Examples:
      eval "$(querator completion bash)"    # in ~/.bashrc
      eval "$(querator completion zsh)"     # in ~/.zshrc, after compinit
      querator completion fish > ~/.config/fish/completions/querator.fish
    """
    root = click.get_current_context().find_root()
    generator = get_completion_class(shell)
    assert generator is not None
    click.echo(generator(root.command, {}, "querator", _VARIABLE).source())
