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
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.nn.parameter import is_lazy
from torch.utils import _pytree

from flodl.errors import StepError
from flodl.graph.dry import dry_run
from flodl.graph.explain import explain
from flodl.graph.state import StateCell, Zero, first_tensor, zero_of

if TYPE_CHECKING:
    from flodl.graph.model import Graph

__all__ = ["faked", "find_zeros", "follow_batch"]

#: Where torch also prints the traceback of every misfit; they are raised, so nothing is lost.
_LOG = logging.getLogger("torch._subclasses.fake_tensor")
#: A step that asks for the values of tensors, which fake ones do not have.
_NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
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
            cell.problem, cell.probed = "", False
            # What was not known before is worth keeping: compilation needs it.
            cell._shape = cell._shape if shape is None else shape
            cell.per_sample = cell.per_sample if per_sample is None else per_sample


def find_zeros(graph: Graph, inputs: tuple[Any, ...]) -> dict[str, Zero]:
    """The shapes of the carried values that are missing: such that a forward that starts with them gives them again.

    The search starts with the shape of what flows where the state is read, then that of the input. Where the flow does
    not run with either, the sizes that occur in the flow's parameters are tried for the features (the last dimension,
    or the second for images). Raises `StepError` with the reason where nothing fits.
    """
    cells = graph._own_cells()
    missing = {tag: cell for tag, cell in cells.items() if cell.value is None}
    held = {tag: zero_of(cell.value) for tag, cell in cells.items() if cell.value is not None}
    with faked(graph, *inputs) as fake:
        reason = ""
        for guess in _guesses(graph, missing, fake):
            try:
                found = _fixed_point(graph, held, fake, guess)
            except _NEEDS_VALUES as error:
                needs = StepError(f"a value is needed there ({error}), and a dry run has shapes only")
                reason = _first_line(needs.with_traceback(error.__traceback__), graph, fake)
                break
            except Exception as misfit:  # any error means that this guess does not fit; the first is reported
                reason = reason or _first_line(misfit, graph, fake)
                continue
            if found is not None:
                return found
            reason = reason or "its shape is another one after every call"
    values = ", ".join(f"{tag}=tensor" for tag in missing)
    names = ", ".join(f"'{tag}'" for tag in missing)
    raise StepError(
        f"the shape of the carried state {names} cannot be found ({reason}): give the first value with reset_state({values})"
    )


def follow_batch(graph: Graph, inputs: tuple[Any, ...]) -> dict[str, bool]:
    """Which carried values have a row for each sample: those whose first dimension grows with the batch in a dry run.

    All of them must have a value. Where the flow does not run with another batch size, the sizes of this one decide.
    """
    zeros = {tag: zero_of(cell.value) for tag, cell in graph._own_cells().items() if cell.value is not None}
    batch = next((t.shape[0] for t in _pytree.tree_leaves(inputs) if isinstance(t, Tensor) and t.ndim), 0)
    tensors = [t for t in _pytree.tree_leaves(inputs) if isinstance(t, Tensor)]
    sizes = {d for t in (*tensors, *graph.parameters()) for d in t.shape} | {d for z in zeros.values() for d in z[0]}
    more = next(n for n in itertools.count(2 * batch, max(batch, 1)) if n not in sizes)  # must not fit by chance

    def larger(t: Tensor) -> Tensor:
        return t.new_zeros((more, *t.shape[1:])) if t.shape[:1] == (batch,) else t

    with faked(graph, *inputs) as fake:
        enlarged = _pytree.tree_map_only(Tensor, larger, fake)
        for choice in itertools.islice(itertools.product((True, False), repeat=len(zeros)), _GUESSES):
            follows = dict(zip(zeros, choice, strict=True))
            guess = {t: ((more, *z[0][1:]), *z[1:]) if follows[t] else z for t, z in zeros.items()}
            try:
                made = _shapes_after(graph, guess, enlarged)
            except Exception:  # this choice does not run
                continue
            if all(made[tag][0][:1] == shape[:1] for tag, (shape, *_) in guess.items()):
                # What flows where the state is read may have another first dimension, time say: no batch to compare.
                cells = graph._own_cells()
                return {
                    t: yes and (s := cells[t].stream) is not None and s[0][:1] == (more,) for t, yes in follows.items()
                }
    return {tag: shape[:1] == (batch,) for tag, (shape, *_) in zeros.items()}


def _fixed_point(
    graph: Graph, held: dict[str, Zero], fake: tuple[Any, ...], guess: dict[str, Zero]
) -> dict[str, Zero] | None:
    """Run with zeros of the guessed shapes until the shapes stay; None when they do not."""
    for _ in range(_ROUNDS):
        made = _shapes_after(graph, {**held, **guess}, fake)
        made = {tag: zero for tag, zero in made.items() if tag not in held}
        if made == guess:
            return made
        guess = made
    return None


def _shapes_after(graph: Graph, zeros: dict[str, Zero], fake: tuple[Any, ...]) -> dict[str, Zero]:
    """What the states look like after a forward that starts with these zeros; a missing one is like what flows."""
    cells = graph._own_cells()
    for cell in graph.modules():
        if isinstance(cell, StateCell):
            cell.value = None  # nested flows start anew as well
    for tag, cell in cells.items():
        cell.probed, cell._shape = True, None
        if tag in zeros:
            shape, dtype, device = zeros[tag]
            cell.value = torch.zeros(shape, dtype=dtype, device=device)
    type(graph).forward(graph, *fake)
    return {tag: zero_of(cell.value) for tag, cell in cells.items() if cell.value is not None}


def _guesses(graph: Graph, cells: dict[str, StateCell], fake: tuple[Any, ...]) -> Iterator[dict[str, Zero]]:
    yield {}
    like = first_tensor(fake)
    if like is None:
        return
    first = zero_of(like)
    yield dict.fromkeys(cells, first)
    sizes = dict.fromkeys(d for p in graph.parameters() for d in p.shape)
    for image_dim in (1, -1):
        for combination in itertools.islice(itertools.product(sizes, repeat=len(cells)), _GUESSES):
            guess: dict[str, Zero] = {}
            for (tag, cell), size in zip(cells.items(), combination, strict=True):
                shape, dtype, device = (
                    cell.stream or first
                )  # a later state may be reached only with the right earlier one
                dim = image_dim if len(shape) > 3 else -1
                guess[tag] = ((*shape[:dim], size, *shape[dim:][1:]), dtype, device)
            yield guess


def _first_line(error: Exception, graph: Graph, fake: tuple[Any, ...]) -> str:
    return (str(explain(error, graph, fake, {})) or type(error).__name__).splitlines()[0]


def _fake(value: Tensor, mode: FakeTensorMode) -> Tensor:
    return value if isinstance(value, FakeTensor) else mode.from_tensor(value.detach())
