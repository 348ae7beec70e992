"""What may stand at the end of a command line."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from flodl_cli.arguments.ask import ask
from flodl_cli.arguments.model import Argument, Schema
from flodl_cli.builtins import BUILTINS, command
from flodl_cli.call import GLOBAL_OPTIONS, Call, parse_call
from flodl_cli.config.layers import environments
from flodl_cli.config.paths import dotted
from flodl_cli.config.report import leaves
from flodl_cli.errors import CliError
from flodl_cli.project import child_environment
from flodl_cli.schema import section_fields
from flodl_cli.tasks.entry import entry_of
from flodl_cli.tasks.model import Command, Manifest

__all__ = ["Candidate", "Completions", "complete"]


class Candidate(NamedTuple):
    """A word and what it means."""

    value: str
    help: str = ""


class Completions(NamedTuple):
    """The words that fit. `files`: the shell's own file names fit, too; `open_end`: no space after the word."""

    candidates: tuple[Candidate, ...] = ()
    files: bool = False
    open_end: bool = False


def complete(words: Sequence[str], current: str) -> Completions:
    """What fits for `current`, the word that is being typed after `words`."""
    found = _complete(list(words), current)
    fitting = tuple(c for c in dict.fromkeys(found.candidates) if c.value.startswith(current))
    return found._replace(candidates=fitting)


def _complete(words: list[str], current: str) -> Completions:
    flags = {flag: (flags, value) for flags, value, _ in GLOBAL_OPTIONS for flag in flags}
    head, waiting = _global_words(words, {f for f, (_, value) in flags.items() if value})
    call = parse_call(words[:head])
    manifest = call.loader.load() if call.root else None
    if waiting:
        return _global_value(call, manifest, waiting, current)
    if head == len(words) and current.startswith("--") and "=" in current:
        name, _, value = current.partition("=")
        return _prefixed(_global_value(call, manifest, name, value), name + "=")
    if head == len(words) and current.startswith("-"):
        return Completions(tuple(Candidate(f[0], text) for f, _, text in GLOBAL_OPTIONS))
    rest = words[head:]
    commands = manifest.commands() if manifest else {}
    if not rest:
        names = environments(manifest.root) if manifest and not call.options.environments else []
        built_in = [Candidate(n, text) for n, (_, text) in BUILTINS.items()]
        return Completions((*_commands(commands.values()), *built_in, *(Candidate(n, "environment") for n in names)))
    if rest[0] in commands and manifest and not call.options.built_in:
        return _in_manifest(call, manifest, rest, current)
    if rest[0] in BUILTINS:
        return _built_in(manifest, rest, current)
    if manifest and rest[0] in environments(manifest.root):
        return _complete(["--env", rest[0], *words[:head], *rest[1:]], current)
    return Completions()


def _global_words(words: Sequence[str], with_value: set[str]) -> tuple[int, str]:
    """How many of the words are fdl's own options, and the option that waits for its value."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        if words[at] in with_value:
            if at + 1 == len(words):
                return at, words[at]
            at += 1
        at += 1
    return at, ""


def _global_value(call: Call, manifest: Manifest | None, option: str, current: str) -> Completions:
    if manifest is None:
        return Completions()
    if option in ("--env", "-e"):
        before = current.rpartition(",")[0]
        prefix = before + "," if before else ""
        given = before.split(",")
        names = [n for n in environments(manifest.root) if n not in given]
        return Completions(tuple(Candidate(prefix + n, "environment") for n in names))
    if option == "--set" and "=" not in current:
        return Completions(tuple(Candidate(f"{name}=") for name in _setting_names(manifest)), open_end=True)
    name, _, _ = current.partition("=")
    section, _, key = name.partition(".")
    fields = section_fields(section) if section in ("training", "ddp", "output") else {}
    field = fields.get(key, {})
    values = field.get("enum", ["true", "false"] if field.get("type") == "boolean" else [])
    return Completions(tuple(Candidate(f"{name}={v}") for v in values))


def _setting_names(manifest: Manifest) -> Iterator[str]:
    for section in ("training", "ddp", "output"):
        yield from (f"{section}.{name}" for name in section_fields(section))
    yield from (dotted(path) for path, node in leaves(manifest.node) if not node.deleted)


def _prefixed(found: Completions, prefix: str) -> Completions:
    return found._replace(candidates=tuple(Candidate(prefix + c.value, c.help) for c in found.candidates))


def _commands(commands: Iterable[Command]) -> tuple[Candidate, ...]:
    return tuple(Candidate(c.name, c.description) for c in commands)


def _in_manifest(call: Call, manifest: Manifest, words: Sequence[str], current: str) -> Completions:
    """Inside a command of the project: `words` start with its name."""
    command_here = manifest.commands().get(words[0])
    rest = list(words[1:])
    if command_here is None:
        return Completions(files=True)
    if "--" in rest:
        return Completions(files=True)
    if command_here.kind == "run":
        return Completions((Candidate("--", "arguments follow"), Candidate("--help", "show help")))
    if command_here.kind == "preset":
        return _entry(manifest, command_here, rest, current)
    inner = call.loader.enter(manifest, command_here)
    if rest and rest[0] in inner.commands():
        return _in_manifest(call, inner, rest, current)
    return _entry(inner, None, rest, current, () if rest else _commands(inner.commands().values()))


def _entry(
    manifest: Manifest,
    command_here: Command | None,
    words: Sequence[str],
    current: str,
    first: tuple[Candidate, ...] = (),
) -> Completions:
    """The options and values of an entry."""
    entry = entry_of(manifest, command_here, child_environment(manifest.root, os.environ))
    if entry is None:
        return Completions(first)
    known = ask(entry)
    schema = known.schema
    if schema is None:
        return Completions(first, files=True)
    while schema.commands and (name := next((w for w in words if w in schema.commands), None)):
        words = words[words.index(name) + 1 :]
        schema = schema.commands[name]
    if current.startswith("-") and "=" in current:
        name = current.partition("=")[0]
        option = next((o for o in schema.options if name in o.flags), None)
        return _prefixed(_values(manifest, option), name + "=") if option else Completions()
    if words and (option := _waiting(schema, words)):
        return _values(manifest, option)
    if current.startswith("-"):
        return Completions((*_flags(schema, words), Candidate("--help", "show help")))
    inner = tuple(Candidate(n, s.description) for n, s in schema.commands.items())
    positional = next(iter(schema.positionals), None)
    found = _values(manifest, positional) if positional else Completions()
    return found._replace(candidates=(*first, *inner, *found.candidates))


def _waiting(schema: Schema, words: Sequence[str]) -> Argument | None:
    """The option whose value is typed next."""
    return next((o for o in schema.options if words[-1] in o.flags and o.takes_value), None)


def _flags(schema: Schema, words: Sequence[str]) -> Iterator[Candidate]:
    given = {w.partition("=")[0] for w in words}
    for option in schema.options:
        if option.hidden or (given & set(option.flags) and not option.repeat):
            continue
        yield Candidate(option.flag, option.help)
        yield from (Candidate(f, option.help) for f in option.off if f.startswith("--") and f != option.flag)


def _values(manifest: Manifest, argument: Argument) -> Completions:
    if argument.choices is not None:
        return Completions(tuple(Candidate(str(c)) for c in argument.choices))
    if argument.name in ("run", "run_id", "resume"):
        runs = _runs(manifest, with_folder=argument.name == "resume")
        return Completions(tuple(Candidate(r, "run") for r in runs), files=argument.name == "resume")
    return Completions(files=argument.kind in ("path", "str"))


def _runs(manifest: Manifest, *, with_folder: bool) -> list[str]:
    """The runs that the manifest's output folder holds, newest first."""
    name = manifest.text("output", "folder") or "runs"
    folder = Path(manifest.folder, name)
    try:
        found = [p for p in folder.iterdir() if (p / "run.db").exists()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CliError(f"cannot list {folder}: {error.strerror}") from error
    ordered = sorted(found, key=lambda p: p.stat().st_mtime, reverse=True)
    return [os.path.join(name, p.name) if with_folder else p.name for p in ordered]


def _built_in(manifest: Manifest | None, words: Sequence[str], current: str) -> Completions:
    """click knows its own commands, the manifest the names that some of them take."""
    given = sum(1 for w in words[2:] if not w.startswith("-"))
    if manifest and not current.startswith("-") and list(words[:2]) == ["config", "explain"] and given == 0:
        return Completions(tuple(Candidate(name) for name in _setting_names(manifest)))
    if manifest and not current.startswith("-") and list(words[:2]) == ["config", "diff"] and given < 2:
        return Completions(tuple(Candidate(n, "environment") for n in environments(manifest.root)))
    from click.shell_completion import ShellComplete

    shell = ShellComplete(command(words[0]), {}, f"fdl {words[0]}", "_FDL_COMPLETE")
    found = shell.get_completions(list(words[1:]), current)
    files = any(item.type in ("file", "dir") for item in found)
    return Completions(tuple(Candidate(i.value, i.help or "") for i in found if i.type == "plain"), files=files)
