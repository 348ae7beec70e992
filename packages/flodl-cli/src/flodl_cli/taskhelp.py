"""Help of one command, wherever in the folders it is."""

from __future__ import annotations

from flodl_cli.call import Call
from flodl_cli.help import command_help, manifest_help
from flodl_cli.tasks.model import Manifest
from flodl_cli.terminal import Style

__all__ = ["print_help"]


def print_help(call: Call, manifest: Manifest, env: dict[str, str]) -> int:
    """Walks the words to the command that they name and prints its help."""
    style = Style(ansi=call.ansi)
    for word in call.words:
        command = manifest.commands().get(word)
        if command is None:
            break
        if command.kind == "path":
            manifest = call.loader.enter(manifest, command)
            continue
        print("\n".join(command_help(manifest, command, style)))
        return 0
    print("\n".join(manifest_help(manifest, style, builtins=False)))
    return 0
