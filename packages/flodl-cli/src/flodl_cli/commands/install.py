"""`fdl install`: fdl on the PATH of the user, whatever environment it lives in."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from flodl_cli import __version__
from flodl_cli.errors import CliError
from flodl_cli.project import find_program
from flodl_cli.terminal import confirm

__all__ = ["install"]


class State(NamedTuple):
    """`own`: the program of this fdl; `launcher`: the link that `fdl install` makes; `found`: what the shell starts."""

    own: Path | None
    launcher: Path
    leads_to: Path | None
    found: Path | None
    on_path: bool

    @property
    def installed(self) -> bool:
        return self.own is not None and self.found is not None and self.found.resolve() == self.own.resolve()


@click.command()
@click.option("--check", is_flag=True, help="Only tell how it is; ends with 1 when `fdl` does not start this fdl.")
@click.option("--json", "as_json", is_flag=True, help="With --check: for scripts.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def install(check: bool, as_json: bool, yes: bool) -> int:
    """Link this fdl into ~/.local/bin, so that the shell finds it everywhere."""
    if as_json and not check:
        raise CliError("--json belongs to --check")
    state = _state()
    if check:
        _tell(state, as_json)
        return 0 if state.installed else 1
    if state.installed:
        print(f"`fdl` is this fdl already: {state.found}")
        return 0
    own = state.own
    if own is None:
        raise CliError(
            f"there is no program fdl beside {sys.executable}: install the distribution flodl-cli there, "
            "for example `pip install flodl-cli` or `pipx install flodl-cli`"
        )
    if state.leads_to != own:
        _link(state.launcher, own, yes)
        print(f"linked {state.launcher} -> {own}")
    for note in _notes(_state()):
        print(note)
    return 0


def _state() -> State:
    home = os.environ.get("HOME")
    if not home or not os.path.isabs(home):
        raise CliError("HOME is not set: there is no ~/.local/bin")
    own = Path(sys.prefix, "bin", "fdl")
    launcher = Path(home, ".local", "bin", "fdl")
    found = find_program("fdl", Path.cwd(), os.environ)
    return State(
        own if own.is_file() else None,
        launcher,
        Path(os.readlink(launcher)) if launcher.is_symlink() else None,
        Path(found) if found else None,
        str(launcher.parent) in os.environ.get("PATH", os.defpath).split(os.pathsep),
    )


def _link(launcher: Path, own: Path, yes: bool) -> None:
    """In one move. Only a link is replaced: a file there is somebody's program."""
    if launcher.is_symlink():
        confirm(f"{launcher} leads to {os.readlink(launcher)}; let it lead to {own}?", yes)
    elif launcher.exists():
        raise CliError(f"{launcher} is there already, and is no link: remove it, then start again")
    else:
        confirm(f"link {launcher} to {own}?", yes)
    temporary = launcher.with_name(f".fdl.{os.getpid()}")
    try:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        temporary.symlink_to(own)
        os.replace(temporary, launcher)
    except OSError as error:
        raise CliError(f"cannot write {launcher}: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _notes(state: State) -> Iterator[str]:
    """What still keeps the shell from starting this fdl."""
    if not state.on_path:
        yield f"{state.launcher.parent} is not on PATH; add this to your shell's start file:"
        yield '    export PATH="$HOME/.local/bin:$PATH"'
    elif not state.installed and state.found is not None:
        yield f"`fdl` is still {state.found}, which stands before {state.launcher.parent} on PATH"


def _tell(state: State, as_json: bool) -> None:
    if as_json:
        values = {
            "version": __version__,
            "own": state.own and str(state.own),
            "launcher": str(state.launcher),
            "leads_to": state.leads_to and str(state.leads_to),
            "found": state.found and str(state.found),
            "on_path": state.on_path,
            "installed": state.installed,
        }
        print(json.dumps(values, ensure_ascii=False, indent=2))
        return
    leads = f"leads to {state.leads_to}" if state.leads_to else "a program" if state.launcher.exists() else "not there"
    if state.leads_to and not state.launcher.exists():
        leads += ", which is gone"
    print(f"this fdl   {__version__} in {state.own or sys.executable}")
    print(f"launcher   {state.launcher}: {leads}")
    print(f"`fdl`      {state.found or 'not found on PATH'}{' (this fdl)' if state.installed else ''}")
    if not state.installed:
        print("\n".join(_notes(state)) if state.leads_to == state.own and state.own else "`fdl install` links it")
