"""The words an entry is started with: its own, those of the manifest and the preset, and what was typed."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flodl_cli.arguments.ask import Entry, ask
from flodl_cli.arguments.check import Parsed, missing, parse_words, value_problem
from flodl_cli.arguments.model import Argument, Schema
from flodl_cli.config.layers import RUN_SECTIONS, of_the_call
from flodl_cli.config.merge import merge
from flodl_cli.config.node import Node
from flodl_cli.config.scalars import parse_scalar
from flodl_cli.config.source import Source
from flodl_cli.errors import CliError, Problem, nearest
from flodl_cli.tasks.model import Command, Manifest
from flodl_cli.tasks.words import split_words

__all__ = ["EntryCall", "entry_call", "entry_of", "no_entry", "preset_settings", "setting_problems"]


class EntryCall(NamedTuple):
    """The argument vector of an entry, and the settings that its run configuration is made of."""

    argv: tuple[str, ...]
    settings: Node


def preset_settings(manifest: Manifest, command: Command | None) -> Node:
    """The run sections of a manifest, those of a preset on top, and above all what the call itself sets."""
    data = {name: node for name in RUN_SECTIONS if (node := manifest.node.get(name))}
    settings = Node(data, manifest.node.place)
    if command is None:
        return settings
    preset = Node({name: node for name in RUN_SECTIONS if (node := command.node.get(name))}, command.node.place)
    result = merge(settings, preset)
    for set_by_call in (of_the_call(settings), of_the_call(preset)):
        result = merge(result, set_by_call) if set_by_call is not None else result
    return result


def entry_of(manifest: Manifest, command: Command | None, env: Mapping[str, str]) -> Entry | None:
    """The program that a preset starts: its own entry, else the manifest's."""
    own = command is not None and command.node.get("entry") is not None
    holder = command.node if command is not None and own else manifest.node
    node = holder.get("entry")
    if node is None:
        return None
    return Entry(tuple(split_words(node, "entry")), manifest.folder, env, holder.get("schema"))


def no_entry(command: Command) -> Problem:
    """What is wrong with a preset that there is nothing to start for."""
    message = f"command '{command.name}' is a preset, and this manifest has no entry for it to start"
    return Problem(message, command.node.key)


def setting_problems(schema: Schema, settings: Node, parsed: Parsed | None = None) -> list[Problem]:
    """What the entry would refuse of the settings; what is typed (`parsed`) covers some of them."""
    chosen = _chosen(schema, settings, parsed or Parsed())
    return [p for a, node in chosen.values() for p in _problems(a, node)] + _unknown_options(schema, settings)


def entry_call(manifest: Manifest, command: Command | None, entry: Entry, words: Sequence[str]) -> EntryCall:
    """Puts the words together: what is typed wins over the preset, the preset over the manifest, each option once."""
    settings = preset_settings(manifest, command)
    known = ask(entry)
    cut = words.index("--") if "--" in words else len(words)
    typed, raw = list(words[:cut]), list(words[cut + 1 :])  # behind `--` nothing is checked
    if known.schema is None:
        given = [w for name, node in _options(settings).items() for w in _unknown_words(name, node, typed)]
        return EntryCall((*entry.words, *given, *typed, *raw), settings)
    if typed and not raw:
        _refuse_unknown_command(manifest, known.schema, typed)
    own = list(entry.words[known.own_words :])
    parsed = parse_words(known.schema, typed)
    chosen = _chosen(known.schema, settings, parsed)
    problems = [Problem(p) for p in parsed.problems] + setting_problems(known.schema, settings, parsed)
    given = [w for argument, node in chosen.values() for w in _words(argument, node)]
    if not problems and not raw:
        problems = [Problem(m) for m in missing(known.schema, parse_words(known.schema, [*own, *given, *typed]))]
    if problems:
        title = " ".join((*manifest.words, command.name)) if command else " ".join(manifest.words)
        raise CliError(*(p._replace(message=f"{title}: {p.message}") if p.place is None else p for p in problems))
    variable = any(argument.nargs in ("*", "+") for argument, _ in chosen.values())
    ordered = [*typed, *given] if variable and not known.schema.commands else [*given, *typed]
    return EntryCall((*entry.words, *ordered, *raw), _with_typed(settings, parsed))


def _options(settings: Node) -> dict[str, Node]:
    options = settings.get("options")
    return options.entries() if options else {}


def _refuse_unknown_command(manifest: Manifest, schema: Schema, typed: Sequence[str]) -> None:
    takes_words = schema.positionals or schema.commands or schema.open
    if not takes_words and not typed[0].startswith("-") and manifest.commands():
        near = nearest(typed[0], manifest.commands())
        raise CliError(f"{manifest.title} has no command '{typed[0]}'.{near}")


def _chosen(schema: Schema, settings: Node, parsed: Parsed) -> dict[str, tuple[Argument, Node]]:
    """The options that the manifest gives a value and that were not typed."""
    chosen: dict[str, tuple[Argument, Node]] = {}
    named = dict(_options(settings))
    for section in ("training", "ddp", "output"):
        fields = settings.get(section)
        for name, node in (fields.entries() if fields else {}).items():
            if not node.is_map:
                named.setdefault(name, node)
    for name, node in named.items():
        argument = schema.option(name)
        if argument is not None and argument.name not in parsed.values:
            chosen.setdefault(argument.name, (argument, node))
    return chosen


def _unknown_options(schema: Schema, settings: Node) -> list[Problem]:
    if schema.open or schema.commands:
        return []
    names = [o.name for o in schema.options if not o.hidden]
    return [
        Problem(f"the entry has no option '{name}'.{nearest(name, names)}", node.key or node.place)
        for name, node in _options(settings).items()
        if schema.option(name) is None
    ]


def _problems(argument: Argument, node: Node) -> list[Problem]:
    values = node.items() if isinstance(node.data, list) else [node]
    said = [(v, value_problem(argument, v.data, argument.name)) for v in values]
    return [Problem(text, v.place) for v, text in said if text]


def _words(argument: Argument, node: Node) -> list[str]:
    """A value of the manifest as words."""
    if argument.kind == "flag":
        flags = [f for f in argument.flags if (f in argument.off) != (node.data is True)]
        return [next((f for f in flags if f.startswith("--")), flags[0])] if flags else []
    if argument.kind == "count":
        return [argument.flag] * int(str(node.data))
    values = [_text(v) for v in (node.items() if isinstance(node.data, list) else [node])]
    if argument.repeat and argument.nargs is None:
        return [w for v in values for w in (argument.flag, v)]
    if len(values) == 1 and argument.flag.startswith("--"):
        return [f"{argument.flag}={values[0]}"] if values[0].startswith("-") else [argument.flag, values[0]]
    return [argument.flag, *values]


def _unknown_words(name: str, node: Node, typed: Sequence[str]) -> list[str]:
    """An option when nothing is known of the entry: `--batch-size 3`, `--flag`; left out when it was typed."""
    flag = "--" + name.replace("_", "-")
    if any(w.partition("=")[0] in (flag, flag.replace("--", "--no-", 1), f"--{name}") for w in typed):
        return []
    if isinstance(node.data, bool):
        return [flag] if node.data else []
    return [flag, *(_text(v) for v in (node.items() if isinstance(node.data, list) else [node]))]


def _text(node: Node) -> str:
    return str(node.data).lower() if isinstance(node.data, bool) else str(node.data)


def _with_typed(settings: Node, parsed: Parsed) -> Node:
    """The settings with what was typed on top, so that the run configuration tells what the program got."""
    typed: dict[str, Node] = {}
    for section in ("training", "ddp", "output"):
        fields = settings.get(section)
        for name in fields.entries() if fields else {}:
            values = parsed.values.get(name)
            if values:
                place = Source(f"{parsed.flags[name]} on the command line").place()
                typed.setdefault(section, Node({}, place))
                typed[section] = typed[section].with_data(
                    {**typed[section].entries(), name: Node(parse_scalar(values[-1]), place)}
                )
    return merge(settings, Node(typed, settings.place)) if typed else settings
