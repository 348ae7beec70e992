"""Every public name says what it is: modules, classes, functions, methods, properties; a paper's rule names the paper."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import flodl as fl

MODULES = ("checkpoint", "data", "distributed", "hf", "monitor")


def public() -> Iterator[tuple[str, Any]]:
    """Each public object by its name, and the methods and properties of classes that are our own."""
    for name in fl.__all__:
        if name != "__version__":
            yield from described(f"fl.{name}", getattr(fl, name))
    for module in MODULES:
        found = importlib.import_module(f"flodl.{module}")
        for name in found.__all__:
            yield from described(f"fl.{module}.{name}", getattr(found, name))


def described(name: str, found: Any) -> Iterator[tuple[str, Any]]:
    if not (inspect.ismodule(found) or callable(found)) or not getattr(found, "__module__", "flodl").startswith(
        "flodl"
    ):
        return  # a constant, or a type alias
    yield name, found
    if inspect.isclass(found):
        for member, value in vars(found).items():
            inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if not member.startswith("_") and (inspect.isfunction(inner)):
                yield f"{name}.{member}", inner


EVERYTHING = dict(public())


def test_every_public_name_has_a_docstring() -> None:
    assert len(EVERYTHING) > 250
    assert not [name for name, found in EVERYTHING.items() if not (inspect.getdoc(found) or "").strip()]


def test_a_docstring_is_prose_or_says_shapes() -> None:
    first = {name: (inspect.getdoc(found) or "").split("\n\n")[0].rstrip() for name, found in EVERYTHING.items()}
    assert not [name for name, text in first.items() if not text.endswith((".", ":", "?", "`")) and "->" not in text]


def test_what_implements_a_paper_names_it() -> None:
    sources = {
        "fl.LearnedHalt": "Graves",
        "fl.find_learning_rate": "Smith",
        "fl.Swa": "Izmailov",
        "fl.Ema": "Polyak",
        "fl.distributed.OuterStep": "DiLoCo",
    }
    assert not [
        name for name, source in sources.items() if not re.search(source, inspect.getdoc(EVERYTHING[name]) or "")
    ]
