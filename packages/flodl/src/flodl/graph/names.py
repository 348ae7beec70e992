"""Names in a flow: which are possible, and which a module gets."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable
from typing import Any

from flodl.errors import FlowError

__all__ = ["STREAM", "check_names", "snake_case", "suggestion", "usable"]

STREAM = "x"  # the variable of the value that flows, and the name of the first input
_RESERVED = (STREAM, "self", "torch")


def usable(name: str, *, reserved: Iterable[str] = _RESERVED) -> bool:
    """Whether `name` can be an argument of the generated forward."""
    return name.isidentifier() and not keyword.iskeyword(name) and name not in reserved


def suggestion(name: str) -> str:
    """What to write instead of a name that is not usable."""
    made = re.sub(r"\W", "_", name).strip("_") or "name"
    if made[0].isdigit():
        made = f"_{made}"
    elif not usable(made):
        made = f"{made}_"
    return f"use {made!r}"


def snake_case(part: Any) -> str:
    """The class of a module as a name: `LayerNorm` gives `layer_norm`."""
    name = re.sub("(?<=[a-z])LU", "lu", type(part).__name__)  # ReLU is one word
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return words.lower().strip("_") or "module"


def check_names(label: str, inputs: tuple[str, ...]) -> None:
    """Raises `FlowError` for a label or names of inputs that are not possible."""
    if label and not label.isidentifier():
        raise FlowError(
            f"label {label!r}: dots separate the levels of a path and a label is one level; {suggestion(label)}"
        )
    if keyword.iskeyword(label):
        raise FlowError(f"label {label!r} is a word of Python, which cannot name a part; {suggestion(label)}")
    for name in inputs:
        if not usable(name):
            raise FlowError(f"input {name!r} cannot be the name of an argument; {suggestion(name)}")
        if inputs.count(name) > 1:
            raise FlowError(f"input {name!r} is named twice")
