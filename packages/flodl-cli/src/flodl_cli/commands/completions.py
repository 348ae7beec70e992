"""`fdl completions SHELL`, `fdl autocomplete`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from flodl_cli.completion.scripts import SCRIPTS
from flodl_cli.errors import CliError, nearest
from flodl_cli.terminal import confirm

__all__ = ["autocomplete", "completions"]


@click.command()
@click.argument("shell", type=click.Choice(list(SCRIPTS)))
def completions(shell: str) -> None:
    """Print the completion script of a shell."""
    print(SCRIPTS[shell], end="")


@click.command()
@click.option("--shell", help="bash, zsh or fish; else the one of $SHELL.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def autocomplete(shell: str | None, yes: bool) -> None:
    """Install completion for your shell."""
    name = shell or os.path.basename(os.environ.get("SHELL", ""))
    if name not in SCRIPTS:
        raise CliError(f"no completion for the shell '{name}'.{nearest(name, SCRIPTS)} --shell names one.")
    script, start_file, line = _places(name)
    changes = [f"write {script}"] + ([f"add a line to {start_file}"] if line and line not in _text(start_file) else [])
    confirm(f"{' and '.join(changes)}?", yes)
    try:
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(SCRIPTS[name], encoding="utf-8")
        if len(changes) > 1:
            with start_file.open("a", encoding="utf-8") as file:
                file.write(f"\n# completion of fdl\n{line}\n")
    except OSError as error:
        raise CliError(f"cannot write {error.filename}: {error.strerror}") from error
    print(f"completion for {name} is installed: it works in new shells")


def _places(shell: str) -> tuple[Path, Path, str]:
    """Where the script goes, the file that a new shell reads, and the line that it needs there (fish needs none)."""
    home = os.environ.get("HOME")
    if not home:
        raise CliError("HOME is not set: `fdl completions SHELL` prints the script, put it where your shell reads it")
    data = Path(os.environ.get("XDG_DATA_HOME") or Path(home, ".local", "share"))
    configuration = Path(os.environ.get("XDG_CONFIG_HOME") or Path(home, ".config"))
    if shell == "fish":
        return configuration / "fish" / "completions" / "fdl.fish", Path(home), ""
    script = data / "flodl" / f"fdl.{shell}"
    if shell == "zsh":
        start_file = Path(os.environ.get("ZDOTDIR") or home, ".zshrc")
        return (
            script,
            start_file,
            f"(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit; }}; source '{script}'",
        )
    return script, Path(home, ".bashrc"), f"[ -f '{script}' ] && . '{script}'"


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
