"""Shapes by a dry run: what fits, and what the zeros of carried state look like at first."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.parameter import is_lazy
from torch.utils import _pytree

from flodl.errors import StepError
from flodl.graph.dry import dry_run
from flodl.graph.state import StateCell

if TYPE_CHECKING:
    from flodl.graph.model import Graph

__all__ = ["Zero", "faked", "find_zeros"]

#: Where torch also prints the traceback of every misfit; they are raised, so nothing is lost.
_LOG = logging.getLogger("torch._subclasses.fake_tensor")
#: Shape, type and device of a carried value.
Zero = tuple[tuple[int, ...], torch.dtype, torch.device]
_ROUNDS = 4  # a value that has no stable shape after as many runs grows for ever
_GUESSES = 512  # combinations of sizes that are tried at most


@contextmanager
def faked(module: nn.Module, *values: Any) -> Iterator[tuple[Any, ...]]:
    """Dry runs of `module`: gives fake tensors for `values`. Buffers and carried state are fake meanwhile, and come back."""
    lazy = [path for path, p in module.named_parameters() if is_lazy(p)]
    if lazy:
        raise StepError(f"'{lazy[0]}' has no shape yet: run that module once on real values, or give its sizes")
    mode = detect_fake_mode(_pytree.tree_leaves(values)) or FakeTensorMode(allow_non_fake_inputs=True)
    buffers = [(m, dict(m._buffers)) for m in module.modules() if m._buffers]
    known = [(m, m._shape, m.per_sample) for m in module.modules() if isinstance(m, StateCell)]
    _LOG.disabled, was_disabled = True, _LOG.disabled
    try:
        with dry_run(), torch.no_grad():
            for owner, real in buffers:
                owner._buffers.update({k: None if v is None else _fake(v, mode) for k, v in real.items()})
            fake = tuple(_pytree.tree_map_only(Tensor, lambda t: _fake(t, mode), value) for value in values)
            with mode:
                yield fake
    finally:
        _LOG.disabled = was_disabled
        for owner, real in buffers:
            owner._buffers.update(real)
        for cell, shape, per_sample in known:
            if shape is not None:  # a shape that was not known before is worth keeping: compilation needs it
                cell._shape, cell.per_sample = shape, per_sample


def find_zeros(graph: Graph, inputs: tuple[Any, ...]) -> dict[str, Zero]:
    """The shape of each carried value for these inputs: the one that a forward that starts with it gives again.

    The search starts with the shape of the input. Where the flow does not run with that, the sizes that occur in the
    flow's parameters are tried for the features (the last dimension, or the second for images).
    """
    cells = graph._own_cells()
    with faked(graph, *inputs) as fake:
        error: Exception | None = None
        for guess in _guesses(graph, list(cells), fake[0]):
            try:
                found = _fixed_point(graph, cells, fake, guess)
            except Exception as misfit:  # any error means that this guess does not fit; the first is reported
                error = error or misfit
                continue
            if found is not None:
                return found
    names = ", ".join(f"'{tag}'" for tag in cells)
    raise StepError(
        f"no shape of the carried state {names} comes out of the flow as it went in: give the first value with "
        f"reset_state({next(iter(cells))}=tensor)"
    ) from error


def _fixed_point(
    graph: Graph, cells: dict[str, StateCell], fake: tuple[Any, ...], guess: dict[str, Zero]
) -> dict[str, Zero] | None:
    """Run with zeros of the guessed shapes until the shapes stay; None when they do not."""
    for _ in range(_ROUNDS):
        for tag, cell in cells.items():
            shape, dtype, device = guess[tag]
            cell.value = torch.zeros(shape, dtype=dtype, device=device)
            cell.per_sample = False  # any first dimension may turn out to be right
        type(graph).forward(graph, *fake)
        made = {tag: _zero_like(cell.value) for tag, cell in cells.items()}
        if made == guess:
            return made
        guess = made
    return None


def _guesses(graph: Graph, tags: list[str], like: Tensor) -> Iterator[dict[str, Zero]]:
    first = _zero_like(like)
    yield dict.fromkeys(tags, first)
    sizes = dict.fromkeys(d for p in graph.parameters() for d in p.shape)
    dims = [like.ndim - 1] if like.ndim < 4 else [1, like.ndim - 1]
    shapes = [(*like.shape[:d], size, *like.shape[d + 1 :]) for d in dims for size in sizes]
    for combination in itertools.islice(itertools.product(shapes, repeat=len(tags)), _GUESSES):
        yield {tag: (shape, *first[1:]) for tag, shape in zip(tags, combination, strict=True)}


def _zero_like(value: Tensor | None) -> Zero:
    assert value is not None
    return tuple(value.shape), value.dtype, value.device


def _fake(value: Tensor, mode: FakeTensorMode) -> Tensor:
    return value if isinstance(value, FakeTensor) else mode.from_tensor(value.detach())
