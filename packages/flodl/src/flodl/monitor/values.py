"""Values on their way into the store and back: numbers (NaN and infinities included) and JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from flodl.errors import StoreError

__all__ = ["decode", "dumps", "encode", "flatten", "loads", "text", "to_float"]

_NAN, _INF, _MINUS_INF = 1, 2, 3
_NOT_FINITE = {_NAN: math.nan, _INF: math.inf, _MINUS_INF: -math.inf}
_FLOATS = ("nan", "inf", "-inf")
_MAX_DEPTH = 32
_MAX_INT_BITS = 4096  # Python refuses to print much larger ones in decimal


def to_float(name: str, value: object) -> float:
    """`value` as a float; an integer beyond the floats becomes an infinity of its sign.

    Raises:
        StoreError: it is no number.
    """
    if not isinstance(value, str | bytes):
        try:
            return float(value)  # type: ignore[arg-type]
        except OverflowError:
            return math.inf if value > 0 else -math.inf  # type: ignore[operator]
        except Exception as error:
            raise StoreError(f"{name!r}: {type(value).__name__} is no number ({error})") from error
    raise StoreError(f"{name!r}: {type(value).__name__} is no number")


def encode(value: float) -> tuple[float | None, int]:
    """The `value` and `kind` columns: SQLite turns a NaN into NULL, so what is not finite is kept in `kind`."""
    if value - value == 0.0:  # only finite values
        return value, 0
    return None, _NAN if value != value else _INF if value > 0 else _MINUS_INF


def decode(value: float | None, kind: int) -> float:
    return value if value is not None else _NOT_FINITE[kind]


def text(value: object) -> str:
    """`value` as text that UTF-8 can hold: a lone surrogate is written as its escape."""
    return str(value).encode("utf-8", "backslashreplace").decode()


def dumps(value: object) -> str:
    """Strict JSON; what JSON lacks is kept readable: NaN as {"$float": "nan"}, a path or a class as its text."""
    return json.dumps(_plain(value, 0), ensure_ascii=False, allow_nan=False)


def loads(document: str) -> Any:
    return json.loads(document, object_hook=_restore)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings as ("optimizer.lr", 0.1)."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{path}.")
        else:
            yield path, value


def _plain(value: object, depth: int) -> object:
    if depth > _MAX_DEPTH:  # also what a structure that contains itself ends at
        return text(repr(value))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _MAX_INT_BITS else hex(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {text(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, set | frozenset):
        return [_plain(item, depth + 1) for item in sorted(value, key=repr)]
    scalar = getattr(value, "item", None)  # NumPy and torch scalars
    if callable(scalar) and getattr(value, "ndim", None) == 0:
        return _plain(scalar(), depth + 1)
    return text(value)


def _restore(found: dict[str, Any]) -> Any:
    return float(found["$float"]) if found.get("$float") in _FLOATS and len(found) == 1 else found
