"""State carried between calls: a name used before the step that makes it."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree

from flodl.errors import StepError
from flodl.graph.dry import is_dry

__all__ = ["StateAdd", "StateCell", "Zero", "first_tensor", "zero_of"]


#: Values written while torch.export traces the live model, for a flow that is called again in the same trace.
_traced: WeakKeyDictionary[StateCell, FakeTensor] = WeakKeyDictionary()
#: Shape, type and device of a carried value.
Zero = tuple[tuple[int, ...], torch.dtype, torch.device]


class StateCell(nn.Module):
    """Holds the value of one tag between calls. Moves with `.to()`, copies without its history.

    It is in the `state_dict` only where the flow was built with `save_state`.
    """

    value: Tensor | None

    def __init__(self, tag: str, *, saved: bool = False) -> None:
        super().__init__()
        self.tag, self.saved = tag, saved
        self.register_buffer("value", None, persistent=saved)
        #: Shape of the last value, known also after a reset.
        self._shape: tuple[int, ...] | None = None
        #: Whether the first dimension is the batch; None until a dry run has told.
        self.per_sample: bool | None = None
        #: Why there are no zeros, said by `read`, at the step that needs them.
        self.problem = ""
        #: Set by a search for the zeros, which wants to know what flows where the state is read.
        self.probed = False
        self.stream: Zero | None = None

    @property
    def ready(self) -> bool:
        """Whether `read` needs no dry run before it."""
        return self.probed or (self.value is not None and self.per_sample is not None)

    def read(self, stream: Any) -> Tensor:
        """The value of the previous call; zeros where there is none and `Graph._start_state` had no chance to make them.

        stream: (batch, ...), what flows where the state is read, the first tensor of it counts. Raises `StepError` when
        the batch size changed.
        """
        like = first_tensor(stream)
        if self.probed and like is not None:
            self.stream = zero_of(like)
        if self.value is None:
            return self._first_value(like)
        if self.per_sample and not self.probed and like is not None and self.value.shape[:1] != like.shape[:1]:
            raise StepError(
                f"state '{self.tag}' holds a batch of {self.value.shape[0]}, this batch has {like.shape[0]}: "
                "call reset_state() between sequences of different batch size"
            )
        return self.value

    def _first_value(self, like: Tensor | None) -> Tensor:
        if like is None:
            raise StepError(
                f"no tensor flows where the state '{self.tag}' is read, to make zeros like it: give the first value with "
                f"reset_state({self.tag}=tensor)"
            )
        if isinstance(like, FakeTensor):
            traced = _traced.get(self)
            if traced is not None and traced.fake_mode is like.fake_mode:  # of this trace, not of an earlier one
                return traced
        if self.problem:
            raise StepError(self.problem)
        if self._shape is None:
            return torch.zeros_like(like)
        return like.new_zeros((like.shape[0], *self._shape[1:]) if self.per_sample is not False else self._shape)

    def write(self, value: Tensor) -> None:
        """Keep `value` for the next call, with its gradient history (`detach` cuts it)."""
        if not isinstance(value, Tensor):
            raise StepError(f"the carried state '{self.tag}' must be a tensor, this is a {type(value).__name__}")
        if isinstance(value, FakeTensor) and not isinstance(self.value, FakeTensor) and not is_dry():
            _traced[self] = value  # torch.export runs the flow; it would leave this value in the live model
            return
        if isinstance(value, nn.Parameter):
            value = value.clone()  # a parameter cannot be a buffer; the gradient goes through the copy
        self.value = value
        self._shape = tuple(value.shape)

    def detach(self) -> None:
        """Cut the gradient history, keep the value."""
        if self.value is not None:
            self.value = self.value.detach()

    def reset(self) -> None:
        """Forget the value."""
        self.value, self.problem = None, ""

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        if self.value is not None:
            state["_buffers"] = {**self._buffers, "value": self.value.detach()}
        return state

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # The value of the file, whatever its batch size; none in the file is none here. Torch would compare shapes.
        if self.saved:
            value = state_dict.get(f"{prefix}value")
            self.value = None if value is None else value.detach().clone()

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        if self.saved and self.value is not None:
            destination[f"{prefix}value"] = self.value if keep_vars else self.value.detach()


class StateAdd(nn.Module):
    """`x + state` where `state` is passed by tag name; `x` alone while there is no state."""

    def forward(self, x: Tensor, **state: Tensor | None) -> Tensor:
        """x: any shape; each state: a shape that broadcasts with x, or None."""
        for value in state.values():
            if value is not None:
                x = x + value
        return x


def zero_of(value: Tensor) -> Zero:
    """What zeros like `value` are made from."""
    return tuple(value.shape), value.dtype, value.device


def first_tensor(value: Any) -> Tensor | None:
    """`value` itself, or the first tensor inside the tuples, lists and dicts that it is made of."""
    if isinstance(value, Tensor):
        return value
    return next((leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, Tensor)), None)
