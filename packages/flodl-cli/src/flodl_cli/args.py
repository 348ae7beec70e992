"""A command line from a dataclass, in one line.

    @dataclass(frozen=True)
    class Settings:
        epochs: int = 3                                        # --epochs 3
        optimizer: Literal["adam", "sgd"] = "adam"             # --optimizer sgd
        compile: bool = False                                  # --compile, --no-compile
        data: Path | None = field(default=None, metadata={"help": "where the data is"})
        sizes: list[int] = field(default_factory=list)         # --sizes 1 2 3

    settings = parse(Settings)

`fdl` knows these options without running the program: help, completion and checks before the start.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

__all__ = ["parse", "parser"]

T = TypeVar("T")


def parse(cls: type[T], argv: Sequence[str] | None = None) -> T:
    """The dataclass filled from the command line (`argv`, else this process's)."""
    given = vars(parser(cls).parse_args(argv))
    hints = get_type_hints(cls)
    return cls(**{name: tuple(v) if get_origin(hints[name]) is tuple else v for name, v in given.items()})


def parser(cls: type[Any]) -> argparse.ArgumentParser:
    """An argparse parser with an option for each field; a field without a default is required."""
    if not dataclasses.is_dataclass(cls):
        raise TypeError(f"{cls!r} is not a dataclass")
    made = argparse.ArgumentParser(description=_description(cls), allow_abbrev=False)
    hints = get_type_hints(cls)
    for item in dataclasses.fields(cls):
        if item.init:
            made.add_argument("--" + item.name.replace("_", "-"), dest=item.name, **_option(item, hints[item.name]))
    return made


def _description(cls: type[Any]) -> str | None:
    text = cls.__doc__ or ""
    return None if text.startswith(f"{cls.__name__}(") else text.strip().partition("\n")[0]


def _option(item: dataclasses.Field[Any], hint: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"help": item.metadata.get("help")}
    if item.default is not dataclasses.MISSING:
        options["default"] = item.default
    elif item.default_factory is not dataclasses.MISSING:
        options["default"] = item.default_factory()
    else:
        options["required"] = True
    hint = _without_none(hint)
    if get_origin(hint) in (list, tuple):
        options["nargs"] = "*"
        hint = (get_args(hint) or (str,))[0]
        if get_origin(hint) in (list, tuple):
            raise TypeError(f"field '{item.name}': a list of lists has no form on a command line")
    return {**options, **_type(item.name, hint)}


def _type(name: str, hint: Any) -> dict[str, Any]:
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if hint in (int, float, str, Path):
        return {"type": hint}
    if get_origin(hint) is Literal:
        values = get_args(hint)
        kind = type(values[0])
        if any(type(v) is not kind for v in values) or kind not in (int, float, str):
            raise TypeError(f"field '{name}': the values of a Literal must be all texts or all numbers")
        return {"type": kind, "choices": values}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"type": hint, "choices": list(hint), "metavar": "{" + ",".join(str(m.value) for m in hint) + "}"}
    raise TypeError(f"field '{name}': {hint} has no form on a command line")


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [a for a in get_args(hint) if a is not type(None)]
        return kinds[0] if len(kinds) == 1 else hint
    return hint
