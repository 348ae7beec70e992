"""Typed words against what an entry takes, before it starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flodl_cli.arguments.model import Argument, Schema
from flodl_cli.errors import nearest

__all__ = ["Parsed", "missing", "parse_words", "value_problem"]


class Parsed:
    """What was typed, as far as the schema tells."""

    def __init__(self) -> None:
        self.values: dict[str, list[str]] = {}  # of the options that were given, by name
        self.flags: dict[str, str] = {}  # the flag by which each was given last
        self.positionals: list[str] = []
        self.problems: list[str] = []
        self.open_end = False  # something was not understood, so that nothing can be said of what is missing


def parse_words(schema: Schema, words: Sequence[str]) -> Parsed:
    """Reads words as the program will, and says what it would refuse."""
    parsed = Parsed()
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--":
            parsed.positionals += words[at:]
            break
        if schema.commands and not _is_option(word):
            _enter(schema, word, words[at:], parsed)
            return parsed
        if not _is_option(word):
            parsed.positionals.append(word)
            continue
        at += _option(schema, word, words[at:], parsed)
    _check_positionals(schema, parsed)
    return parsed


def _is_option(word: str) -> bool:
    if len(word) < 2 or word[0] != "-":
        return False
    try:
        float(word)  # -1 and -.5 are values
        return False
    except ValueError:
        return " " not in word


def _enter(schema: Schema, word: str, rest: Sequence[str], parsed: Parsed) -> None:
    if word not in schema.commands:
        parsed.problems.append(f"there is no '{word}'.{nearest(word, schema.commands)}")
        return
    inner = parse_words(schema.commands[word], rest)
    parsed.problems += inner.problems
    parsed.open_end = True  # the commands have options of their own


def _option(schema: Schema, word: str, rest: Sequence[str], parsed: Parsed) -> int:
    """Reads one option; how many of the following words belong to it."""
    name, equals, value = word.partition("=")
    option, attached = _find(schema, name, word)
    if option is None:
        if schema.open:
            parsed.open_end = True
        else:
            flags = [f for o in schema.options if not o.hidden for f in o.flags]
            parsed.problems.append(f"there is no option {name}.{nearest(name, flags)}")
        return 0
    parsed.flags[option.name] = name
    given = parsed.values.setdefault(option.name, [])
    if not option.repeat:
        given.clear()
    if not option.takes_value:
        if equals:
            parsed.problems.append(f"{name} takes no value")
        given.append("false" if name in option.off else "true")
        return 0
    if equals or attached:
        values, used = [value if equals else attached], 0
    else:
        used = _count(option, rest)
        values = list(rest[:used])
        if not values and option.nargs not in ("?", "*"):
            parsed.problems.append(f"{name} needs a value")
    given += values
    parsed.problems += [p for v in values if (p := value_problem(option, v, name))]
    return used


def _find(schema: Schema, name: str, word: str) -> tuple[Argument | None, str]:
    """The option that a word names, and the value that a short one has attached (-n3)."""
    for option in schema.options:
        if name in option.flags:
            return option, ""
    if name.startswith("--"):
        begun = [o for o in schema.options if any(f.startswith(name) for f in o.flags)]
        return (begun[0], "") if schema.abbreviations and len(begun) == 1 else (None, "")
    for option in schema.options:
        if word[:2] in option.flags:
            return (option, word[2:]) if option.takes_value else (option, "")
    return None, ""


def _count(option: Argument, rest: Sequence[str]) -> int:
    """How many of the words that follow are values of the option."""
    run = next((i for i, w in enumerate(rest) if _is_option(w) or w == "--"), len(rest))
    if isinstance(option.nargs, int):
        return min(option.nargs, run)
    if option.nargs in ("*", "+"):
        return run
    if option.nargs == "...":
        return len(rest)
    return min(1, run)


def value_problem(argument: Argument, value: Any, name: str) -> str:
    """Why a value does not fit; empty when it does, or when only the program can tell."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if argument.choices is not None and argument.checked:
        valid = [str(c) for c in argument.choices]
        if text not in valid:
            return f"{name} is '{text}'.{nearest(text, valid)}"
    elif argument.kind in ("int", "float"):
        try:
            int(text) if argument.kind == "int" else float(text)
        except ValueError:
            return f"{name} is '{text}'; it must be {'a whole number' if argument.kind == 'int' else 'a number'}"
    elif argument.kind == "flag" and text not in ("true", "false"):
        return f"{name} is '{text}'; it must be true or false"
    return ""


def _check_positionals(schema: Schema, parsed: Parsed) -> None:
    if schema.commands or parsed.open_end:
        return
    sizes = [a.nargs for a in schema.positionals]
    if not any(n in ("*", "+", "...", "A...") for n in sizes):
        most = sum(n if isinstance(n, int) else 1 for n in sizes)
        if len(parsed.positionals) > most and not schema.open:
            parsed.problems.append(f"'{parsed.positionals[most]}' is one argument too many")
    if all(n is None for n in sizes):
        for argument, value in zip(schema.positionals, parsed.positionals, strict=False):
            if problem := value_problem(argument, value, argument.name):
                parsed.problems.append(problem)


def missing(schema: Schema, parsed: Parsed) -> Iterator[str]:
    """What the program would miss."""
    if schema.commands or schema.open or parsed.open_end:
        return
    for option in schema.options:
        if option.required and option.name not in parsed.values:
            yield f"{option.flag} is missing"
    needed = sum(1 for a in schema.positionals if a.required and (a.nargs is None or a.nargs == "+"))
    if len(parsed.positionals) < needed:
        yield f"{schema.positionals[len(parsed.positionals)].name} is missing"
