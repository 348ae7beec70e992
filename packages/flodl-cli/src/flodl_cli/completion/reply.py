"""`fdl --complete SHELL ...`: the question as the shell has it, the answer as the shell wants it.

The answer's first line holds directives (`files`, `nospace`), each further one a word and, after a tab, what it means.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from flodl_cli.completion.candidates import Completions, complete
from flodl_cli.errors import CliError

__all__ = ["reply", "split_line"]


def reply(question: Sequence[str]) -> Iterator[str]:
    """The lines of the answer. bash asks with the line and the cursor's place in it, the others with the words."""
    if not question:
        raise CliError("--complete is what completion scripts ask; `fdl completions bash` prints one")
    shell, *rest = question
    if shell == "bash":
        line, point = [*rest, "", "0"][:2]
        words, quote = split_line(line[: int(point)])
        current = words.pop()
        yield from _lines(complete(words[1:], current), lambda value: _for_bash(value, current, quote))
    else:
        *words, current = rest or [""]
        yield from _lines(complete(words, current), str)


def _lines(found: Completions, shown: object) -> Iterator[str]:
    assert callable(shown)
    yield ",".join(name for name, on in (("files", found.files), ("nospace", found.open_end)) if on)
    for candidate in found.candidates:
        text = " ".join(candidate.help.split())
        yield f"{shown(candidate.value)}\t{text}"


def _for_bash(value: str, current: str, quote: str) -> str:
    """What bash inserts: it takes = and : for the ends of words, so what stands before them is there already."""
    there = max(current.rfind("="), current.rfind(":")) + 1
    rest = value[there:]
    return rest if quote else shlex.quote(rest)


def split_line(line: str) -> tuple[list[str], str]:
    """The words of an unfinished line, the last one (maybe empty) still being typed, and the quote that is open in it."""
    words, word, quote, started = [], "", "", False
    at = 0
    while at < len(line):
        character = line[at]
        at += 1
        if quote:
            if character == quote:
                quote = ""
            elif character == "\\" and quote == '"' and at < len(line) and line[at] in '"\\$`':
                word += line[at]
                at += 1
            else:
                word += character
        elif character in "'\"":
            quote, started = character, True
        elif character == "\\" and at < len(line):
            word += line[at]
            started = True
            at += 1
        elif character in " \t\n":
            if started:
                words.append(word)
            word, started = "", False
        else:
            word += character
            started = True
    return [*words, word], quote
