"""Run by another Python: the public names of its flodl, as JSON. Only the standard library, and flodl itself."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Iterator
from typing import Any


def report() -> dict[str, Any]:
    flodl = importlib.import_module("flodl")
    return {"version": flodl.__version__, "names": list(_public(flodl, ""))}


def _public(module: Any, prefix: str) -> Iterator[dict[str, Any]]:
    for name in sorted(module.__all__):
        if name.startswith("__"):
            continue
        thing, path = getattr(module, name), prefix + name
        if inspect.ismodule(thing):
            yield _entry(path, "module", thing)
            if hasattr(thing, "__all__"):
                yield from _public(thing, f"{path}.")
        elif inspect.isclass(thing):
            yield {**_entry(path, "class", thing), "signature": _signature(thing)}
            yield from _members(thing, path)
        elif callable(thing):
            yield {**_entry(path, "function", thing), "signature": _signature(thing)}
        else:
            yield {"name": path, "kind": "value", "signature": f" = {thing!r}"[:80], "doc": ""}


def _members(cls: type, path: str) -> Iterator[dict[str, Any]]:
    """What our own classes of the hierarchy define; nn.Module and tuple have their own documentation."""
    ours = [base for base in reversed(cls.__mro__) if base.__module__.startswith("flodl")]
    for name, value in sorted({k: v for base in ours for k, v in vars(base).items()}.items()):
        if name.startswith("_"):
            continue
        plain = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if inspect.isfunction(plain):
            bound = getattr(cls, name) if isinstance(value, (staticmethod, classmethod)) else plain
            text = _signature(bound)
            yield {**_entry(f"{path}.{name}", "method", plain), "signature": re.sub(r"^\(self(, )?", "(", text)}
        elif isinstance(value, property):
            yield {**_entry(f"{path}.{name}", "property", value), "signature": ""}


def _entry(path: str, kind: str, thing: Any) -> dict[str, Any]:
    lines = inspect.cleandoc(thing.__doc__ or "").splitlines()
    return {"name": path, "kind": kind, "signature": "", "doc": lines[0] if lines else "", "text": "\n".join(lines)}


def _signature(thing: Any) -> str:
    """Annotations as they are written, without the quotes that `inspect` puts around them."""
    try:
        text = str(inspect.signature(thing))
    except (TypeError, ValueError):  # made in C
        return "(...)"
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)


if __name__ == "__main__":
    print("\n" + json.dumps(report(), ensure_ascii=True))
