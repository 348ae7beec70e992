"""Hooks of a trainer on the user's model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["OwnHook"]


class OwnHook:
    """Calls `call`; in a copy or pickle of the model (`copy.deepcopy`, `torch.save(model)`) it does nothing.

    A bound method as a hook would take the whole trainer along, with its files and threads.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __reduce__(self) -> tuple[type[OwnHook], tuple[Callable[..., Any]]]:
        return OwnHook, (_nothing,)


def _nothing(*_args: Any) -> None:
    pass
