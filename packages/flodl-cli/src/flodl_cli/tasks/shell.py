"""A run line with the typed words: as parameters of the shell, where the line's last command takes them."""

from __future__ import annotations

import re
from typing import NamedTuple

from flodl_cli.config.node import Node
from flodl_cli.errors import CliError, Problem

__all__ = ["shell_words"]

_PARAMETER = re.compile(r"\$[@*1-9]|\$\{[@*1-9]")
_HEREDOC = re.compile(r"<<-?\s*[\w'\"\\]")
_CLOSING = {"done", "fi", "esac", "}"}  # what stands behind them is no argument


class _Line(NamedTuple):
    """What a scan of a line finds."""

    code: str  # without comments at its end
    takes_words: bool  # it uses "$@", "$1"... itself
    simple_end: bool  # it ends in a simple command, which takes what is written behind it


def shell_words(run: Node, words: list[str], append: str) -> tuple[str, ...]:
    """`sh -c` with the typed words as its parameters: no shell ever reads them as text."""
    line = str(run.data).rstrip()
    scanned = _scan(line)
    if words and not scanned.takes_words:
        if not scanned.simple_end:
            message = 'its end is no simple command that takes arguments: write "$@" in the line where they belong'
            raise CliError(Problem(f"run: {message}", run.place))
        line = f'{scanned.code} "$@"'
    if append:
        line = f"{line if words and not scanned.takes_words else scanned.code} {append}"
    return ("sh", "-c", line, "sh", *words) if words or scanned.takes_words else ("sh", "-c", line)


def _scan(line: str) -> _Line:
    """Reads a line as far as it takes to know its end: quotes, comments, substitutions, where commands begin."""
    inside: list[str] = []  # what is open: a quote, $( ), ${ }, ( )
    takes_words = new_line = False
    begin = end = at = 0  # of the last command, of all that is no comment
    while at < len(line):
        sign = line[at]
        quoted = inside[-1:] == ['"']
        if sign == "#" and not quoted and (at == 0 or line[at - 1] in " \t\n;&|()"):
            at = _index(line, "\n", at)
            continue
        if sign.isspace() and not quoted:
            new_line |= sign == "\n" and not inside
            at += 1
            continue
        if new_line:
            begin, new_line = at, False
        if not inside and _HEREDOC.match(line, at) and line[at - 1 : at] != "<":
            # Its text follows no rules: only whether the words are used somewhere is told.
            return _Line(line, takes_words or _PARAMETER.search(line) is not None, False)
        takes_words |= _PARAMETER.match(line, at) is not None
        step = 1
        if sign == "\\":
            if at + 1 == len(line):
                return _Line(line, takes_words, False)
            step = 2
        elif sign == "'" and not quoted:
            step = _index(line, "'", at + 1) + 1 - at
        elif sign == '"':
            inside.pop() if quoted else inside.append('"')
        elif sign == "$" and line[at + 1 : at + 2] in ("(", "{"):
            inside.append("$" + line[at + 1])
            step = 2
        elif sign == "(" and not quoted:
            inside.append("(")
        elif (sign == ")" and inside[-1:] in (["("], ["$("])) or (sign == "}" and inside[-1:] == ["${"]):
            inside.pop()
        elif not inside and sign in ";&|" and not _redirects(line, at):
            begin = at + 1
        at = end = min(at + step, len(line))
    first = line[begin:end].split()[:1]
    simple = not inside and bool(first) and first[0] not in _CLOSING and not first[0].startswith("(")
    return _Line(line[:end], takes_words, simple)


def _index(line: str, sign: str, start: int) -> int:
    found = line.find(sign, start)
    return len(line) if found < 0 else found


def _redirects(line: str, at: int) -> bool:
    """`2>&1`, `>|`, `&>`: a part of a redirection, and no end of a command."""
    return line[at - 1 : at] in ("<", ">") or (line[at] == "&" and line[at + 1 : at + 2] == ">")
