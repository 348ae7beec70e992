"""Plain scalars of YAML 1.2's core schema: `1e-3` is a number, `no` is a string."""

from __future__ import annotations

import re

from flodl_cli.config.node import Scalar

__all__ = ["parse_scalar"]

_INT = re.compile(r"[-+]?[0-9]{1,400}")
_OCTAL, _HEX = re.compile(r"0o[0-7]+"), re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITY = re.compile(r"([-+]?)\.(inf|Inf|INF)")


def parse_scalar(text: str) -> Scalar:
    """What a plain (unquoted) scalar means in YAML 1.2's core schema."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE"):
        return True
    if text in ("false", "False", "FALSE"):
        return False
    if _INT.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text):
        return int(text[2:], 8)
    if _HEX.fullmatch(text):
        return int(text[2:], 16)
    if _FLOAT.fullmatch(text):
        return float(text)
    if sign := _INFINITY.fullmatch(text):
        return float(sign.group(1) + "inf")
    if text in (".nan", ".NaN", ".NAN"):
        return float("nan")
    return text
