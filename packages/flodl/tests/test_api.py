"""The public names and their signatures, frozen: a change is seen in the diff of `api.txt`.

After a change that is meant: `UPDATE_API=1 ./fdl test -- packages/flodl/tests/test_api.py`.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flodl as fl

SNAPSHOT = Path(__file__).with_name("api.txt")


def signature(thing: Any) -> str:
    # addresses and the paths of typing's own modules differ between Pythons
    return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(thing)))


def members(cls: type) -> Iterator[str]:
    ours = [base for base in reversed(cls.__mro__) if base.__module__.startswith("flodl")]
    for name, value in sorted({k: v for base in ours for k, v in vars(base).items()}.items()):
        if name.startswith("_"):
            continue
        plain = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if inspect.isfunction(plain):
            yield f"  {name}{signature(plain)}"
        elif isinstance(value, property):
            yield f"  {name}"


def public(module: Any, prefix: str) -> Iterator[str]:
    for name in sorted(module.__all__):
        thing = getattr(module, name)
        if inspect.ismodule(thing):
            yield from public(thing, f"{prefix}{name}.")
        elif inspect.isclass(thing):
            yield f"class {prefix}{name}"
            yield from members(thing)
        elif inspect.isfunction(thing):
            yield f"{prefix}{name}{signature(thing)}"
        else:
            yield f"{prefix}{name}"


def test_the_public_interface_is_the_one_written_down() -> None:
    now = "\n".join(public(fl, "fl.")) + "\n"
    if os.environ.get("UPDATE_API"):
        SNAPSHOT.write_text(now, encoding="utf-8")
    assert now == SNAPSHOT.read_text("utf-8")


def test_every_public_name_has_a_docstring() -> None:
    missing = []
    for module in (fl, fl.checkpoint, fl.data, fl.hf, fl.monitor):
        for name in module.__all__:
            thing = getattr(module, name)
            if (inspect.isclass(thing) or inspect.isfunction(thing)) and not inspect.getdoc(thing):
                missing.append(f"{module.__name__}.{name}")
    assert missing == []
