"""The whole step in one graph: forward, loss, backward and update, with no Python and no separate kernels in between."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.data.batch import leaves
from flodl.errors import TrainingError
from flodl.graph.state import StateCell
from flodl.train.functional import GroupUpdate, group_updates, supported

__all__ = ["WholeStep", "split_result"]

_MOST_SHAPES = 3
_FREQUENT = 20  # steps after which a further shape of batch is worth a compile

_serial = itertools.count(1)

TrainFn = Callable[[nn.Module, Any], Any]
Result = tuple[Tensor, dict[str, Any]]


class WholeStep:
    """Takes training steps compiled. `step(batch)` answers None for a step that must be taken eagerly.

    That is the first step (it checks loss and labels and lets the optimizer make its state), a batch of a rare shape
    (the short last one), and every step once something cannot be compiled: `reason` then says what.
    """

    def __init__(self, train_fn: TrainFn, model: nn.Module, optimizer: Optimizer) -> None:
        self.reason = ""
        self.compiled_steps = 0
        self._train_fn, self._model, self._optimizer = train_fn, model, optimizer
        self._seen: dict[Any, int] = {}  # shape of batch -> steps
        self._shapes: set[Any] = set()  # that are compiled
        self._compiled: Callable[[Any, list[Tensor]], Result] | None = None
        self._constants: Any = None
        self._updates: list[GroupUpdate] = []
        self._lrs: list[Tensor] = []
        self._stale = optimizer.register_load_state_dict_post_hook(self._forget)

    def close(self) -> None:
        """Take the hook off the optimizer."""
        self._stale.remove()

    def step(self, batch: Any) -> Result | None:
        """Forward, backward and update. Returns loss and metrics, detached; None: take this step eagerly."""
        if self.reason:
            return None
        shape = tuple((v.shape, v.dtype) if isinstance(v, Tensor) else v for _, v in leaves(batch))
        seen = self._seen[shape] = self._seen.get(shape, 0) + 1
        if shape not in self._shapes:
            if len(self._seen) == 1 and seen == 1:
                return None
            if self._shapes and (seen < _FREQUENT or len(self._shapes) == _MOST_SHAPES):
                return None
        constants = self._read_constants()
        if constants != self._constants:
            self.reason = self._obstacle()
            if self.reason:
                return None
            self._compiled, self._constants = self._trace(), constants
        for tensor, update in zip(self._lrs, self._updates, strict=True):
            tensor.fill_(float(update.group["lr"]))
        assert self._compiled is not None
        if torch.is_anomaly_enabled():
            return None
        try:
            with nullcontext() if shape in self._shapes else _compiling():
                result = self._compiled(batch, self._lrs)
        except Exception as error:
            if shape in self._shapes:
                raise
            # Nothing was run. If it is the user's own error, the eager step raises it.
            self.reason = f"it does not compile: {_first_line(error)}"
            return None
        self._shapes.add(shape)
        self.compiled_steps += 1
        return result

    def _obstacle(self) -> str:
        """Why this training cannot be one graph; empty if it can."""
        if not supported(self._optimizer):
            return f"{type(self._optimizer).__name__} has no functional form"
        import torch._dynamo.config  # takes a second, which eager training need not wait for

        if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
            return f"torch {torch.__version__} cannot trace a backward pass (2.13 can)"
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in parameters):
            return "a parameter has a gradient hook"
        hooks = (self._optimizer._optimizer_step_pre_hooks, self._optimizer._optimizer_step_post_hooks)
        if any(len(h) > 1 for h in hooks):
            return "the optimizer has a step hook"  # beside the trainer's own
        if any(isinstance(m, StateCell) for m in self._model.modules()):
            return "the model carries state between calls"
        return ""

    def _read_constants(self) -> Any:
        """What the graph holds as constants; when it changes, a new one is traced."""
        return [
            ([v for k, v in group.items() if k not in ("params", "lr")], [p.requires_grad for p in group["params"]])
            for group in self._optimizer.param_groups
        ]

    def _trace(self) -> Callable[[Any, list[Tensor]], Result]:
        train_fn, model = self._train_fn, self._model
        updates = self._updates = group_updates(self._optimizer)
        parameters = [p for update in updates for p in update.parameters]
        # 0-dimensional and in float64, as Python's own numbers are
        self._lrs = [torch.tensor(float(u.group["lr"]), dtype=torch.float64) for u in updates]

        def step(batch: Any, lrs: list[Tensor]) -> Result:
            loss, metrics = split_result(train_fn(model, batch))
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                at = 0
                for update, lr in zip(updates, lrs, strict=True):
                    update.apply(gradients[at : at + len(update.parameters)], lr)
                    at += len(update.parameters)
            return loss.detach(), {k: v.detach() if isinstance(v, Tensor) else v for k, v in metrics.items()}

        # Torch counts compiles per code object and gives up after a few: each trainer gets one of its own.
        step.__code__ = step.__code__.replace(co_name=f"whole_step_{next(_serial)}")
        self._shapes.clear()
        return torch.compile(step, fullgraph=True, dynamic=False)

    def _forget(self, _optimizer: Optimizer) -> None:
        """The optimizer loaded another state: its tensors are new ones."""
        self._constants = None


@contextmanager
def _compiling() -> Iterator[None]:
    """Torch's settings for a whole step; the user's are back afterwards."""
    import torch._dynamo.config
    import torch._inductor.config

    with (
        torch._dynamo.config.patch(trace_autograd_ops=True, allow_rnn=True),
        torch._inductor.config.patch(compile_threads=1),  # a pool of compiling processes would outlive the training
    ):
        yield


def split_result(result: Any) -> Result:
    """What a train_fn returns, a loss or (loss, metrics), as a pair. Raises `TrainingError` for anything else."""
    if not isinstance(result, tuple):
        return result, {}
    if len(result) != 2 or not isinstance(result[1], dict) or "loss" in result[1]:
        kinds = ", ".join(type(part).__name__ for part in result)
        raise TrainingError(
            f"a train_fn returns the loss, or (loss, metrics) with a dict of metrics (the loss is recorded as 'loss'), "
            f"not ({kinds})"
        )
    return result


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
