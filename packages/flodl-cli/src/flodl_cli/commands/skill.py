"""`fdl skill`: a guide for coding assistants, how to port PyTorch code to floDl."""

from __future__ import annotations

from pathlib import Path

import click

from flodl_cli.call import Call
from flodl_cli.scaffold.write import create, replace_text
from flodl_cli.terminal import confirm

__all__ = ["skill"]

_GUIDE = Path(__file__).parents[1] / "scaffold" / "files" / "SKILL.md"
_NAME = "port-to-flodl"  # the folder must have the name that the guide gives itself
_FOLDER = Path(".agents", "skills")


@click.group()
def skill() -> None:
    """A guide for coding assistants, how to port PyTorch code to floDl."""


@skill.command()
def show() -> None:
    """Print the guide."""
    print(_GUIDE.read_text(encoding="utf-8"), end="")


@skill.command()
@click.option(
    "--to",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="The assistant's folder of skills; without it .agents/skills of the project.",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask before a changed guide is replaced.")
@click.pass_obj
def install(call: Call, to: Path | None, yes: bool) -> None:
    """Write the guide as a skill (a folder with SKILL.md) where coding assistants look for it."""
    folder = (to if to is not None else (call.root or Path.cwd()) / _FOLDER) / _NAME
    path = folder / "SKILL.md"
    text = _GUIDE.read_text(encoding="utf-8")
    if path.exists():
        if path.read_text(encoding="utf-8", errors="replace") == text:
            print(f"{path} is up to date")
            return
        confirm(f"{path} differs from the guide of this version; replace it?", yes)
        replace_text(path, text)
    else:
        folder.parent.mkdir(parents=True, exist_ok=True)
        create(folder, {"SKILL.md": text})
    print(f"wrote {path}")
