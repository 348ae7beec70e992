"""Asks a script for its parser: `python probe.py OUT.json file SCRIPT` (or `module NAME`), in the project's own Python.

Only the slice of the script that builds the parser runs. Where it would parse, the parser is written to OUT.json as data and
the process ends, so nothing behind that point runs either. Imports nothing but the standard library and its neighbours.
"""

from __future__ import annotations

import ast
import contextlib
import enum
import importlib.util
import json
import os
import pathlib
import sys
import types
import typing
from typing import Any


def main() -> None:
    out, kind, target = sys.argv[1:4]
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path = [p for p in sys.path if os.path.abspath(p or ".") != here]
    script = target
    if kind == "module":
        sys.path.insert(0, os.getcwd())
        found = importlib.util.find_spec(target)
        if found is not None and found.submodule_search_locations is not None:
            found = importlib.util.find_spec(target + ".__main__")
        if found is None or found.origin is None:
            write(out, None, [])
        assert found is not None
        script = str(found.origin)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    tree = ast.parse(pathlib.Path(script).read_bytes(), script)
    documentation = ast.get_docstring(tree, clean=False)  # description=__doc__: the slice has lost it
    cut = neighbour("slice", here).cut(tree)
    module = neighbour("trust", here).believed(*cut) if cut is not None else None
    if module is None:
        write(out, None, [script])
    assert module is not None
    sys.argv = [script]
    space = types.ModuleType("__main__")
    space.__dict__.update(
        __doc__=documentation, __file__=script, __package__=target.rpartition(".")[0] if kind == "module" else None
    )
    sys.modules["__main__"] = space
    set_traps(module, lambda schema: write(out, schema, [script]))
    exec(compile(module, script, "exec", dont_inherit=True), space.__dict__)
    write(out, None, [script])


def neighbour(name: str, folder: str) -> Any:
    """slice.py or trust.py, whose names might be those of modules of the project."""
    spec = importlib.util.spec_from_file_location("_fdl_" + name, os.path.join(folder, name + ".py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(out: str, schema: dict[str, Any] | None, files: list[str]) -> None:
    """Writes what was found with the files that it depends on, and ends the process at once."""
    folder = os.path.dirname(os.path.abspath(files[0])) + os.sep if files else os.sep
    own = {getattr(m, "__file__", None) for m in list(sys.modules.values())}
    files = [os.path.abspath(f) for f in files]
    files += sorted(f for f in own if f and f.startswith(folder) and f not in files and "site-packages" not in f)
    with open(out, "w", encoding="utf-8") as file:
        json.dump({"schema": schema, "files": files}, file)
    os._exit(0)


def set_traps(module: ast.Module, found: Any) -> None:
    """From here on whoever would parse hands its parser over instead."""
    import argparse

    argparse.ArgumentParser.parse_known_args = lambda self, *_, **__: found(of_argparse(self, open_=True))  # type: ignore[method-assign]
    argparse.ArgumentParser.parse_args = lambda self, *_, **__: found(of_argparse(self))  # type: ignore[method-assign]
    argparse.ArgumentParser.parse_intermixed_args = argparse.ArgumentParser.parse_args  # type: ignore[method-assign]
    imported = {a.name for n in ast.walk(module) if isinstance(n, ast.Import) for a in n.names}
    imported |= {n.module or "" for n in ast.walk(module) if isinstance(n, ast.ImportFrom)}
    if any(name.partition(".")[0] == "click" for name in imported):
        import click

        click.Command.main = lambda self, *_, **__: found(of_click(self))  # type: ignore[method-assign]
        click.Command.__call__ = click.Command.main  # type: ignore[method-assign]
    if any(name.partition(".")[0] == "typer" for name in imported):
        import typer

        typer.Typer.__call__ = lambda self, *_, **__: found(of_click(typer.main.get_command(self)))  # type: ignore[method-assign]


def of_argparse(parser: Any, open_: bool = False) -> dict[str, Any]:
    """An argparse parser as data."""
    import argparse

    options, positionals, commands = [], [], {}
    for action in parser._actions:
        if isinstance(action, (argparse._HelpAction, argparse._VersionAction)):
            continue
        if isinstance(action, argparse._SubParsersAction):
            commands = {name: of_argparse(sub, open_) for name, sub in action.choices.items()}
        elif action.option_strings:
            options.append(argparse_action(action))
        else:
            positionals.append(argparse_action(action))
    return {
        "description": parser.description or "",
        "options": options,
        "positionals": positionals,
        "commands": commands,
        "open": open_ or bool(parser.fromfile_prefix_chars) or parser.prefix_chars != "-",
        "abbreviations": parser.allow_abbrev,
    }


def argparse_action(action: Any) -> dict[str, Any]:
    import argparse

    kinds = {int: "int", float: "float", bool: "str", pathlib.Path: "path"}
    kind = kinds.get(action.type, "path" if type(action.type).__name__ == "FileType" else "str")
    off: list[str] = []
    if isinstance(action, argparse._CountAction):
        kind = "count"
    elif isinstance(action, argparse.BooleanOptionalAction):
        kind, off = "flag", [f for f in action.option_strings if f.startswith("--no-")]
    elif isinstance(action, argparse._StoreFalseAction):
        kind, off = "flag", list(action.option_strings)
    elif action.nargs == 0:
        kind = "flag"
    text = action.help if isinstance(action.help, str) else ""
    with contextlib.suppress(KeyError, TypeError, ValueError):  # the script's own --help would fail on it, too
        text = text % {**vars(action), "prog": "", "type": kind}
    return {
        "name": action.dest,
        "flags": list(action.option_strings),
        "off": off,
        "kind": kind,
        "checked": action.type in (None, int, float, str)
        or (isinstance(action.type, type) and issubclass(action.type, enum.Enum)),
        "choices": [plain(c) for c in action.choices or ()] or None,  # none at all: filled by something not seen
        "default": None if action.default is argparse.SUPPRESS else plain(action.default),
        "required": bool(action.required) if action.option_strings else action.nargs not in ("?", "*"),
        "nargs": action.nargs if kind not in ("flag", "count") else None,
        "repeat": isinstance(action, (argparse._AppendAction, argparse._ExtendAction)),
        "help": "" if action.help is argparse.SUPPRESS else text,
        "hidden": action.help is argparse.SUPPRESS,
    }


def of_click(command: Any) -> dict[str, Any]:
    """A click command (or typer's, which is one) as data."""
    params = [click_param(p) for p in command.params if p.name not in ("help", "install_completion", "show_completion")]
    commands = {name: of_click(c) for name, c in getattr(command, "commands", {}).items()}
    context = command.context_settings
    return {
        "description": (command.help or "").split("\f")[0].strip(),
        "options": [p for p in params if p["flags"]],
        "positionals": [p for p in params if not p["flags"]],
        "commands": commands,
        "open": bool(context.get("ignore_unknown_options") or context.get("allow_extra_args")),
        "abbreviations": False,
    }


def click_param(param: Any) -> dict[str, Any]:
    is_option = param.param_type_name == "option"
    kind, choices = (
        click_type(param.type) if hasattr(param, "type") else annotated_type(param.type_descriptor.annotation)
    )
    if is_option and getattr(param, "count", False):
        kind = "count"
    elif is_option and getattr(param, "is_flag", False):
        kind = "flag"
    many = not is_option and param.nargs == -1
    return {
        "name": param.name,
        "flags": [*param.opts, *param.secondary_opts] if is_option else [],
        "off": list(param.secondary_opts) if is_option else [],
        "kind": kind,
        "checked": True,
        "choices": choices,
        "default": None if callable(param.default) else plain(param.default),
        "required": bool(param.required),
        "nargs": ("+" if param.required else "*") if many else (param.nargs if param.nargs != 1 else None),
        "repeat": bool(getattr(param, "multiple", False)),
        "help": getattr(param, "help", None) or "",
        "hidden": bool(getattr(param, "hidden", False)),
    }


def click_type(kind: Any) -> tuple[str, list[Any] | None]:
    """The kind and the choices of a click parameter type."""
    numbers = {"integer": "int", "integer range": "int", "float": "float", "float range": "float"}
    kinds = {**numbers, "path": "path", "filename": "path", "file": "path"}
    choices = getattr(kind, "choices", None)
    if choices is None or not getattr(kind, "case_sensitive", True):
        return kinds.get(str(getattr(kind, "name", "")), "str"), None
    return "str", [plain(c) for c in choices] or None


def annotated_type(annotation: Any) -> tuple[str, list[Any] | None]:
    """The same for typer's parameters, which know the annotation of the function."""
    inner = [a for a in typing.get_args(annotation) if a is not type(None)]
    if typing.get_origin(annotation) is typing.Literal:
        return "str", [plain(v) for v in inner]
    if inner and typing.get_origin(annotation) is not None:
        return annotated_type(inner[0])
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return "str", [plain(m) for m in annotation]
    return {int: "int", float: "float", pathlib.Path: "path"}.get(annotation, "str"), None


def plain(value: Any) -> Any:
    """A default or a choice as JSON."""
    if isinstance(value, enum.Enum):
        return None if type(value).__name__ == "Sentinel" else plain(value.value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple, set, frozenset, range)):
        return [plain(v) for v in value]
    return str(value)


if __name__ == "__main__":
    main()
