"""The whole step in one graph: forward, loss, backward and update, with no Python and no separate kernels in between."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.data.batch import leaves
from flodl.errors import TrainingError
from flodl.graph.state import StateCell
from flodl.train.ahead import Ahead
from flodl.train.functional import GroupUpdate, group_updates, supported
from flodl.train.verify import first_step_agrees

if TYPE_CHECKING:
    from flodl.train.update import UpdateRule

__all__ = ["MOST_SHAPES", "WholeStep", "compiling", "signature", "split_result"]

MOST_SHAPES = 3
"""Of batches, that are compiled."""
_MOST_RECOMPILES = 3
_FREQUENT = 20  # steps after which a further shape of batch is worth a compile

_serial = itertools.count(1)

TrainFn = Callable[[nn.Module, Any], Any]
Result = tuple[Tensor, dict[str, Any]]


class WholeStep:
    """Takes training steps compiled. `step(batch)` answers None for a step that must be taken eagerly.

    That is the first step (it checks loss and labels and lets the optimizer make its state), a batch of a rare shape
    (the short last one), and every step once something cannot be compiled: `reason` then says what.
    """

    def __init__(
        self, train_fn: TrainFn, model: nn.Module, optimizer: Optimizer, rule: UpdateRule | None = None
    ) -> None:
        self.reason = ""
        self.compiled_steps = 0
        self.compile_seconds = 0.0
        """What the compiles took of the training's time."""
        self._verified = rule is not None and rule.accumulate > 1  # a part of an update shows little
        self._train_fn, self._model, self._optimizer, self._rule = train_fn, model, optimizer, rule
        self._seen: dict[Any, int] = {}  # shape of batch -> steps
        self._compiled: dict[Any, Callable[..., Result]] = {}  # (shape, whether it closes an update) -> step
        self._shapes: set[Any] = set()
        self._recompiles = 0
        self._constants: Any = None
        self._updates: list[GroupUpdate] = []
        self._parameters: list[Tensor] = []
        self._lrs: list[Tensor] = []
        self._lr_values: list[float] = []
        self._numbers = [torch.zeros((), dtype=torch.float64) for _ in range(3)]  # weight, sum of weights, EMA's weight
        self._state: Any = None  # the optimizer's, as traced: loading another one replaces it

    def step(self, batch: Any, *, weight: float = 1.0, window: float = 1.0, last: bool = True) -> Result | None:
        """Forward, backward and update. Returns loss and metrics, detached; None: take this step eagerly.

        weight: the batch's, of an update from several batches; window: their sum, with this one. last: make the update
        (else the gradients are added to `p.grad`).
        """
        if self.reason:
            return None
        shape = signature(batch)
        if not self._ready(shape) or torch.is_anomaly_enabled():
            return None
        for index, update in enumerate(self._updates):
            lr = float(update.group["lr"])
            if lr != self._lr_values[index]:
                self._lr_values[index] = lr
                self._lrs[index].fill_(lr)
        sums: list[Tensor] = []
        ema = self._rule.ema if self._rule else None
        if self._rule and self._rule.accumulate > 1:
            sums = self._sums()
            self._numbers[0].fill_(weight), self._numbers[1].fill_(window)
        if ema and last:
            self._numbers[2].fill_(ema.weight())
        compiled = self._compiled.get((shape, last))
        if compiled is None:
            result = self._first(shape, last, batch, sums)
        else:
            try:
                result = compiled(batch, self._lrs, sums, self._numbers)
            except Exception as error:
                if not _nothing_ran(error):
                    raise
                result = self._again(compiled, batch, sums, error)
        if result is not None:
            self.compiled_steps += 1
            if ema and last:
                ema.updates += 1
        return result

    def ahead(self, batch: Any) -> Ahead | None:
        """Compile for this batch in a process of its own, into the cache on disk. None: it cannot be done here."""
        if self.reason or not self._ready(signature(batch), now=True):
            return None
        single = not self._rule or self._rule.accumulate == 1
        sums = [] if single else [torch.zeros_like(p) for p in self._parameters]

        def trace(backend: Any) -> None:
            with compiling():
                for last in (True,) if single else (True, False):
                    made = torch.compile(self._trace(last), fullgraph=True, dynamic=False, backend=backend)
                    made(batch, self._lrs, sums, self._numbers)

        return Ahead.start(trace, graphs=1 if single else 2)

    def _ready(self, shape: Any, *, now: bool = False) -> bool:
        """Whether a batch of this shape is to be compiled, or is already."""
        if shape not in self._shapes:
            seen = self._seen[shape] = self._seen.get(shape, 0) + (not now)
            if len(self._seen) == 1 and seen == 1 and not now:
                return False
            if self._shapes and (seen < _FREQUENT or len(self._shapes) == MOST_SHAPES):
                return False
        constants = self._read_constants()
        if constants != self._constants or self._optimizer.state is not self._state:
            self.reason = self._obstacle()
            if self.reason:
                return False
            self._constants, self._state = constants, self._optimizer.state
            self._compiled.clear()
            self._updates = group_updates(self._optimizer)
            self._parameters = [p for update in self._updates for p in update.parameters]
            # 0-dimensional and in float64, as Python's own numbers are
            self._lr_values = [float(u.group["lr"]) for u in self._updates]
            self._lrs = [torch.tensor(lr, dtype=torch.float64) for lr in self._lr_values]
            if not self._parameters:  # the optimizer has made no update yet, so no state
                self._constants = None
                return False
        return True

    def _first(self, shape: Any, last: bool, batch: Any, sums: list[Tensor]) -> Result | None:
        """The first compiled step of its kind."""
        same = next((step for (_, closes), step in self._compiled.items() if closes == last), None)
        made = same or torch.compile(self._trace(last), fullgraph=True, dynamic=False)

        def take() -> Result:
            with compiling():
                return made(batch, self._lrs, sums, self._numbers)

        started = time.perf_counter()
        result: list[Result] = []

        def loss() -> Tensor:
            result[:] = [take()]
            return result[0][0]

        try:
            if self._verified:
                loss()
            else:
                eager = lambda: split_result(self._train_fn(self._model, batch))[0]  # noqa: E731
                self.reason = first_step_agrees(eager, self._model, self._optimizer, self._rule, loss)
        except Exception as error:
            # Nothing was updated. If it is the user's own error, the eager step raises it.
            self.reason = f"it does not compile: {first_line(error)}"
            return None
        finally:
            self.compile_seconds += time.perf_counter() - started
        self._verified = True
        if not self.reason:  # else the eager step was taken in its place
            self._shapes.add(shape)
            self._compiled[shape, last] = made
        return result[0]

    def _again(self, compiled: Callable[..., Result], batch: Any, sums: list[Tensor], why: Exception) -> Result | None:
        """Something that the graph had as a constant has changed (a module's mode or attribute)."""
        self._recompiles += 1
        if self._recompiles > _MOST_RECOMPILES:
            self.reason = (
                "something in the model or the train_fn changes again and again, and is a constant of the graph"
            )
            return None
        started = time.perf_counter()
        try:
            with compiling():
                return compiled(batch, self._lrs, sums, self._numbers)
        except Exception as error:
            if not _nothing_ran(error):
                raise
            self.reason = f"it does not compile anew: {first_line(error)}"
            return None
        finally:
            self.compile_seconds += time.perf_counter() - started

    def _obstacle(self) -> str:
        """Why this training cannot be one graph; empty if it can."""
        if not supported(self._optimizer):
            return f"{type(self._optimizer).__name__} has no functional form"
        if self._rule and self._rule.amp == "fp16":
            return "float16 scales the loss and looks at its gradients before each update"
        import torch._dynamo.config  # takes a second, which eager training need not wait for

        if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
            return f"torch {torch.__version__} cannot trace a backward pass (2.13 can)"
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in parameters):
            return "a parameter has a gradient hook"
        optimizer = self._optimizer
        hooks = [*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values()]
        if any(hook.__module__ != "flodl.train.stepper" for hook in hooks):  # the trainer's own
            return "the optimizer has a step hook"
        if any(isinstance(m, StateCell) for m in self._model.modules()):
            return "the model carries state between calls"
        return ""

    def _read_constants(self) -> Any:
        """What the graph holds as constants; when it changes, a new one is traced."""
        return [
            (
                [v for k, v in group.items() if k not in _NO_CONSTANTS],
                [id(p) if p.requires_grad else 0 for p in group["params"]],
            )
            for group in self._optimizer.param_groups
        ]

    def _sums(self) -> list[Tensor]:
        """The gradients of the update under way."""
        for p in self._parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        return [p.grad for p in self._parameters if p.grad is not None]

    def _trace(self, last: bool) -> Callable[..., Result]:
        train_fn, model, rule, updates, parameters = (
            self._train_fn, self._model, self._rule, self._updates, self._parameters,
        )  # fmt: skip
        ema = rule.ema if rule else None
        averages, live = ema.pairs() if ema else ([], [])

        def step(batch: Any, lrs: list[Tensor], sums: list[Tensor], numbers: list[Tensor]) -> Result:
            loss, metrics = split_result(train_fn(model, batch))
            gradients: list[Tensor | None] = list(torch.autograd.grad(loss, parameters, allow_unused=True))
            with torch.no_grad():
                if sums:
                    weight, window = numbers[0].to(loss.dtype), numbers[1].to(loss.dtype)
                    added = [s if g is None else s + g * weight for s, g in zip(sums, gradients, strict=True)]
                    if last:
                        gradients = [g / window for g in added]
                    else:
                        for s, g in zip(sums, added, strict=True):
                            s.copy_(g)
                if last:
                    if rule:
                        gradients = clipped(gradients, rule.clip_value, rule.clip_norm)
                    at = 0
                    for update, lr in zip(updates, lrs, strict=True):
                        update.apply(gradients[at : at + len(update.parameters)], lr)
                        at += len(update.parameters)
                    for average, p in zip(averages, live, strict=True):
                        average.add_((p.to(average.dtype) - average) * numbers[2].to(average.dtype))
            return loss.detach(), {k: v.detach() if isinstance(v, Tensor) else v for k, v in metrics.items()}

        # Torch counts compiles per code object and gives up after a few: each trainer gets one of its own.
        step.__code__ = step.__code__.replace(co_name=f"whole_step_{next(_serial)}")
        return step


_NO_CONSTANTS = ("params", "lr", "initial_lr", "fused", "foreach")


def clipped(gradients: list[Tensor | None], value: float | None, norm: float | None) -> list[Tensor | None]:
    """As `torch.nn.utils.clip_grad_value_` and then `clip_grad_norm_` have them."""
    if value is not None:
        gradients = [g if g is None else g.clamp(-value, value) for g in gradients]
    if norm is not None:
        norms = [torch.linalg.vector_norm(g) for g in gradients if g is not None]
        scale = (norm / (torch.linalg.vector_norm(torch.stack(norms)) + 1e-6)).clamp(max=1.0)
        gradients = [g if g is None else g * scale for g in gradients]
    return gradients


def signature(batch: Any) -> Any:
    """Shapes and types of a batch's tensors, and its other values."""
    if type(batch) is tuple and all(type(v) is Tensor for v in batch):
        return tuple([(v.shape, v.dtype) for v in batch])
    return tuple((v.shape, v.dtype) if isinstance(v, Tensor) else v for _, v in leaves(batch))


@contextmanager
def compiling() -> Iterator[None]:
    """Torch's settings for a whole step; the user's are back afterwards."""
    import torch._dynamo.config
    import torch._inductor.config

    with (
        torch._dynamo.config.patch(trace_autograd_ops=True, allow_rnn=True),
        torch._inductor.config.patch(
            compile_threads=1,  # a pool of compiling processes would outlive the training
            fallback_random=True,  # dropout draws what it draws eagerly
            size_asserts=False,  # the guards check sizes; on a step of 0.1 ms this is a tenth
        ),
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


def first_line(error: BaseException) -> str:
    """An error in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[1].startswith("Explanation: "):  # dynamo's own form
        lines[0] += f" ({lines[1].removeprefix('Explanation: ')})"
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def _nothing_ran(error: Exception) -> bool:
    """Whether an error is torch's compiler's, before it ran anything."""
    from torch._dynamo.exc import TorchDynamoException

    return isinstance(error, TorchDynamoException)
