"""The commands that fdl itself has; each module is imported when its command runs, not before."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

    from flodl_cli.call import Call

__all__ = ["BUILTINS", "ELSEWHERE", "command", "run_builtin"]

# name: (module and click command, description)
BUILTINS = {
    "config": ("flodl_cli.commands.config:config", "show, explain, compare and check the configuration"),
    "schema": ("flodl_cli.commands.schema:schema", "what is known of the arguments of entries"),
    "init": ("flodl_cli.commands.init:init", "make a new project that trains and tests at once"),
    "add": ("flodl_cli.commands.add:add", "add a Hugging Face example to the project"),
    "libtorch": ("flodl_cli.commands.libtorch:libtorch", "get and keep libtorch, the C++ library of PyTorch"),
    "diagnose": ("flodl_cli.commands.diagnose:diagnose", "look at GPUs, driver, libtorch, torch: what helps"),
    "setup": ("flodl_cli.commands.setup:setup", "install the torch that fits this machine, and try it"),
    "cache": ("flodl_cli.commands.cache:cache", "what is known of the fastest step of each model"),
    "dash": ("flodl_cli.commands.monitor:dash", "show runs in a browser, live and finished ones"),
    "runs": ("flodl_cli.commands.monitor:runs", "list, compare, export, stop and delete runs"),
    "simulate": ("flodl_cli.commands.simulate:simulate", "predict how devices that are not here would train together"),
    "hf": ("flodl_cli.commands.hf:hf", "export, check and convert models for transformers"),
    "api-ref": ("flodl_cli.commands.api_ref:api_ref", "list the public names of flodl, or explain one"),
    "skill": ("flodl_cli.commands.skill:skill", "a guide for coding assistants: porting PyTorch code"),
    "install": ("flodl_cli.commands.install:install", "link this fdl into ~/.local/bin"),
    "completions": ("flodl_cli.commands.completions:completions", "print the completion script of a shell"),
    "autocomplete": ("flodl_cli.commands.completions:autocomplete", "install completion for your shell"),
}
ELSEWHERE = ("completions", "autocomplete")  # a shell's start file calls them in any folder, so nothing hides them


def command(name: str) -> click.Command:
    """The click command of a built-in."""
    module, _, attribute = BUILTINS[name][0].partition(":")
    found: click.Command = getattr(importlib.import_module(module), attribute)
    return found


def run_builtin(name: str, words: list[str], call: Call) -> int:
    """Runs a built-in; wrong calls end with exit code 2 and its usage."""
    import click

    found = command(name)
    try:  # not by main(), which makes of a closed pipe an exit code of its own
        with found.make_context(f"fdl {name}", words, obj=call) as context:
            status = found.invoke(context)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.exceptions.Abort:
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return status if isinstance(status, int) else 0
