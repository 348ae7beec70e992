"""The model compiled in place, for a loop of the user's own: forward and backward of each training step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flodl.train.compiled import _nothing_ran, first_line, signature

__all__ = ["CompiledModel"]

_MOST_SHAPES = 3


class CompiledModel:
    """Stands in the model's own call while it is on, so that the model stays the user's object and its keys theirs.

    Evaluations, inputs that need a gradient (of a gradient, perhaps: compiled models have none) and batches of further
    shapes are computed eagerly. `reason` says why nothing is compiled any more.
    """

    def __init__(self, model: nn.Module) -> None:
        self.reason = ""
        self._model = model
        self._before: Any = None
        self._compiled: Any = None
        self._shapes: set[Any] = set()

    def on(self, wanted: bool) -> None:
        """Put it in the place of the model's call, or what was there before."""
        if wanted:
            self._before = self._model._compiled_call_impl
            self._model._compiled_call_impl = self._call
        else:
            self._model._compiled_call_impl = self._before

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        model = self._model
        plain = self._before or model._call_impl
        if self.reason or not model.training or not torch.is_grad_enabled():
            return plain(*args, **kwargs)
        shape = signature((args, tuple(sorted(kwargs.items()))))
        tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)]
        if any(t.requires_grad for t in tensors) or (shape not in self._shapes and len(self._shapes) == _MOST_SHAPES):
            return plain(*args, **kwargs)
        from torch._functorch import config as functorch
        from torch._inductor import config as inductor

        try:
            if self._compiled is None:
                self._compiled = torch.compile(model._call_impl, dynamic=False)
            if shape in self._shapes:
                return self._compiled(*args, **kwargs)
            with (
                inductor.patch(compile_threads=1, fallback_random=True),
                functorch.patch(force_non_lazy_backward_lowering=True),  # the backward is compiled here, too
            ):
                out = self._compiled(*args, **kwargs)
            self._shapes.add(shape)
            return out
        except Exception as error:
            if not _nothing_ran(error):
                raise
            self.reason = first_line(error)
            return plain(*args, **kwargs)
