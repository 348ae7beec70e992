"""What happens inside a loop, iteration by iteration, for who asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from torch import Tensor

from flodl.graph.dry import is_dry
from flodl.graph.samples import in_tensors

__all__ = ["Trace", "detached", "emit"]

#: The loops that run now and are traced, outermost first, by thread.
_running: dict[int, list[Trace]] = {}


class Trace:
    """The values of some names at each iteration of a loop's last run; None where an iteration gave none."""

    def __init__(self) -> None:
        self.values: dict[str, list[Any]] = {}
        self._now: dict[str, Any] = {}

    def want(self, name: str) -> None:
        """Trace this name from the next run on."""
        self.values.setdefault(name, [])

    def put(self, name: str, value: Any) -> None:
        """The value of the iteration that runs now; within one iteration the last value counts."""
        self._now[name] = value

    def next_iteration(self) -> None:
        """Close an iteration."""
        for name, values in self.values.items():
            values.append(self._now.get(name))
        self._now.clear()

    @contextmanager
    def run(self) -> Iterator[None]:
        """One run of the loop: forgets the run before."""
        for values in self.values.values():
            values.clear()
        self._now.clear()
        thread = get_ident()
        _running.setdefault(thread, []).append(self)
        try:
            yield
        finally:
            _running[thread].pop()
            if not _running[thread]:
                del _running[thread]


def emit(name: str, value: Any) -> None:
    """Give a value to the trace `name` of the loop around, from inside its body or condition.

    Declared with `.loop_body(body, emits=("name",))` and read with `model.traces("name")`; an iteration that emits
    nothing has None there. Costs nothing while nobody observes the name. `value`: any tensor, detached here.
    """
    if _running and not is_dry():
        for trace in reversed(_running.get(get_ident(), [])):
            if name in trace.values:
                trace.put(name, detached(value))
                return


def detached(value: Any) -> Any:
    """The value without its gradient history, through tuples, lists and dictionaries."""
    return in_tensors(Tensor.detach, value)
