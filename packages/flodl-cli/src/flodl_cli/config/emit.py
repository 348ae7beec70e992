"""Values as YAML text that every reader (1.1 and 1.2) takes for the same values."""

from __future__ import annotations

import json
import re

from flodl_cli.config.node import Plain, Scalar

__all__ = ["block_lines", "block_text", "flow_text", "key_text", "scalar_text"]

_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./+@-]*( [A-Za-z0-9_./+@-]+)*")
_PLAIN_LINE = re.compile(r"[A-Za-z_/].*")
_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "y", "n", ".inf", ".nan", "."}


def scalar_text(value: Scalar) -> str:
    """A scalar on one line, quoted where it must be."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float_text(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS and not re.match(r"\.[0-9eE_]", value):
        return value
    return _quoted(value)


def block_text(value: Plain) -> str:
    """A value on one line of its own: a text there needs quotes less often than between braces."""
    plain = (
        isinstance(value, str)
        and _PLAIN_LINE.fullmatch(value)
        and value.isprintable()
        and not any(sign in value for sign in (": ", " #"))
        and value[-1] not in ": "
        and value.lower() not in _WORDS
    )
    return str(value) if plain else flow_text(value)


def key_text(key: str) -> str:
    """A key of a map."""
    return scalar_text(key)


def flow_text(value: Plain) -> str:
    """A value of any kind on one line: `{ a: 1, b: [x, y] }`."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key_text(k)}: {flow_text(v)}" for k, v in value.items()) + " }" if value else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(flow_text(v) for v in value) + "]"
    return scalar_text(value)


def block_lines(text: str) -> tuple[str, list[str]] | None:
    """The header (`|`, `|-`) and lines of a text that may be written as a block, or None when it must be quoted."""
    lines = text.removesuffix("\n").split("\n")
    if len(lines) < 2 or lines[-1] == "" or not lines[0] or lines[0][0] in " \t":
        return None
    if any((line and not line.strip()) or not line.isprintable() or line.startswith("\ufeff") for line in lines):
        return None
    return ("|" if text.endswith("\n") else "|-"), lines


def _float_text(value: float) -> str:
    if value != value:
        return ".nan"
    if value in (float("inf"), float("-inf")):
        return ".inf" if value > 0 else "-.inf"
    text = repr(value)
    mantissa, e, exponent = text.partition("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}{e}{exponent}"  # YAML 1.1 wants the dot


def _quoted(text: str) -> str:
    escaped = json.dumps(text, ensure_ascii=False)
    if escaped.isprintable():
        return escaped
    return "".join(c if c.isprintable() else _escape(c) for c in escaped)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
