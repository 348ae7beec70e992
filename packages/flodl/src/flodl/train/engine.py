"""The step engine: takes each step of a training by the recipe that was chosen for it, and measures what it takes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from flodl.train import machine
from flodl.train.ahead import Ahead
from flodl.train.chooser import Chooser, Move
from flodl.train.compiled import MOST_SHAPES, Result, TrainFn, WholeStep, signature
from flodl.train.modelform import CompiledModel
from flodl.train.recipes import Recipe
from flodl.train.remembered import Remembered, key_of

if TYPE_CHECKING:
    from flodl.train.update import UpdateRule

__all__ = ["StepEngine"]

# What a compile costs training: a whole step, and more for each parameter; the model alone.
_WHOLE_SECONDS, _TENSOR_SECONDS, _MODEL_SECONDS = 3.0, 0.1, 15.0
_RARE = 0.05  # of the batches: a shape that is not compiled, such as that of the short last one


class StepEngine:
    """Takes steps by a recipe: a fixed one, or, with mode "auto", the one that a `Chooser` finds.

    With a `train_fn`: `step` takes a batch whole, or answers None, and the caller takes it inside `with eager():`.
    In a loop of the user's own: `boundary` at the end of each update. `close` puts everything back: threads, matrix
    products, allocator, optimizer flags, memory format, the model's own call.

    total_steps: updates in the whole training, None if unknown. why_not_whole: a reason against one graph that the caller
    knows. own_loop: the loop is the user's. cache: where choices are remembered; the user's own folder without it.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        mode: str,
        rule: UpdateRule | None = None,
        total_steps: Callable[[], int | None] = lambda: None,
        why_not_whole: str = "",
        own_loop: bool = False,
        cache: Path | None = None,
    ) -> None:
        self.news: str | None = None
        """A line to be said, to be taken by who says it."""
        self.chosen: dict[str, Any] | None = None
        """A choice to be recorded, to be taken by who does."""
        self.own_loop = own_loop
        self.steps = 0
        self._model, self._optimizer, self._rule, self._mode = model, optimizer, rule, mode
        self._total, self._cache = total_steps, cache
        self._fixed = None if mode == "auto" else Recipe.parse(mode)
        self.plain = self._fixed == Recipe()
        """Whether there is nothing to set up or to measure."""
        self._why_not_whole = why_not_whole
        self._chooser: Chooser | None = None
        self._memory: Remembered | None = None
        self._written: Recipe | None = None
        self._forgetful = False  # a choice could not be remembered
        self._whole: WholeStep | None = None
        self._compiled_model: CompiledModel | None = None
        self._ahead: Ahead | None = None
        self._shapes: Counter[Any] = Counter()  # of the batches while a compile waits
        self._asked = 0  # when a compile is worth its time is asked now and then
        self._reason = ""
        self._now = Recipe()  # what is set up: fused, channels_last, allocator, graph "model"
        self._flags: list[dict[str, Any]] = []
        self._settings = ExitStack()  # a loop of the user's own: threads and products, from boundary to boundary
        self._seconds = 0.0
        self._last = True
        self._countable = True
        self._size = self._first_size = 0
        self._entered_at = 0.0
        self._facts: _Facts | None = None

    # -- steps

    def step(
        self, train_fn: TrainFn, batch: Any, *, weight: Any = 1.0, window: Any = 1.0, last: bool = True
    ) -> Result | None:
        """A batch, whole; None: take it inside `with eager():`. Arguments as in `WholeStep.step`."""
        if self.plain:
            return None
        recipe = self._recipe(batch)
        self._last, self._countable = last, True
        if self._whole is None:
            self._whole = WholeStep(train_fn, self._model, self._optimizer, self._rule)
            self._whole.reason = self._why_not_whole
        if self._chooser and self._chooser.waiting:
            self._consider_compiling(batch)
        if recipe.graph != "whole":
            self._set_up(recipe)
            return None
        self._set_up(recipe if recipe.fused == self._now.fused else recipe.but(fused=self._now.fused))
        with machine.in_force(self._beside(recipe)):
            started = time.perf_counter()
            result = self._whole.step(batch, weight=weight, window=window, last=last)
            if result is not None:
                self._took(time.perf_counter() - started)
                return result
        self._countable = False  # an eager step among compiled ones
        self._not_whole(recipe)
        return None

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Around forward, backward and update of a step that `step` left to the caller."""
        if self.plain:
            self.steps += 1
            yield
            return
        recipe = self._chooser.recipe if self._chooser else self._fixed or Recipe()
        if recipe.graph == "whole":
            recipe = recipe.but(graph="eager", fused=self._facts.fusable if self._facts and not self._fixed else False)
            self._set_up(recipe)
        self._settings.enter_context(machine.in_force(self._beside(recipe)))
        self._entered_at = time.perf_counter()
        try:
            yield
            self.end()
        finally:
            self._settings.close()
            self._entered_at = 0.0

    def end(self) -> None:
        """The work of an eager step is done; what follows (metrics, an evaluation) is no part of it."""
        if self._entered_at:
            self._took(time.perf_counter() - self._entered_at)
            self._entered_at = 0.0
            self._settings.close()
            self._check_model()

    def boundary(self, batch: Any = None) -> None:
        """In a loop of the user's own: an update is done, the next one begins. batch: what the model was called with."""
        if self.plain:
            self.steps += 1
            return
        now = time.perf_counter()
        recipe = self._recipe(batch)
        if self._entered_at:
            self._took(now - self._entered_at)
            if self._chooser and self._chooser.waiting and self._pays(_MODEL_SECONDS):
                self._chooser.start(self._chooser.waiting)  # its compile is the first step of a block
            self._check_model()
            recipe = self._recipe(batch)
        if recipe != self._now:
            self._settings.close()
            self._set_up(recipe)
            self._settings.enter_context(machine.in_force(recipe, lasting=True))
        self._entered_at = time.perf_counter()

    def pause(self) -> None:
        """What comes until the next boundary is no step alone (an evaluation, a checkpoint)."""
        self._entered_at = 0.0

    # -- what is chosen

    def report(self) -> str:
        """What was tried, how fast it was, and what was chosen."""
        lines = [f"{self.steps} steps; the step is now taken by {self.recipe}"]
        if self._fixed:
            lines[0] += f" (training.step is {self._mode})"
        if self._memory and self._memory.recipe and not (self._chooser and self._chooser.trials):
            lines.append("remembered from an earlier run on this machine")
        if self._whole and self._whole.compiled_steps:
            spent = f"compiling took {self._whole.compile_seconds:.1f} s"
            lines.append(f"{self._whole.compiled_steps} steps were one compiled graph each; {spent}")
        reason = self._reason or (self._whole.reason if self._whole else "")
        if reason:
            lines.append(
                f"eagerly, though: {reason}" if self.recipe.graph == "whole" else f"not compiled whole: {reason}"
            )
        for trial in self._chooser.trials if self._chooser else ():
            lines.append(
                f"  {trial.challenger}: {trial.ratio:.2f} times as fast as {trial.base} "
                f"({len(trial.ratios)} pairs): {trial.verdict}"
            )
        return "\n".join(lines)

    @property
    def searched(self) -> bool:
        """Whether everything was tried that can be, and the winner was compared with plain PyTorch."""
        return self._fixed is not None or (
            self._chooser is not None and self._chooser.settled and self._chooser.checked
        )

    @property
    def recipe(self) -> Recipe:
        """In force, trials apart."""
        return self._chooser.best if self._chooser else self._fixed or Recipe()

    def choice(self) -> dict[str, Any]:
        """As plain values: the recipe in force, and the trials."""
        chooser = self._chooser
        return {
            "recipe": str(self.recipe),
            "step_ms": 1e3 * chooser.seconds if chooser else None,
            "trials": [
                {
                    "challenger": str(t.challenger),
                    "base": str(t.base),
                    "ratio": t.ratio,
                    "pairs": len(t.ratios),
                    "verdict": t.verdict,
                }
                for t in (chooser.trials if chooser else ())
            ],
        }

    @contextmanager
    def as_given(self) -> Iterator[None]:
        """The optimizer's flags are the user's inside: for what is saved."""
        fused = self._now.fused
        if fused:
            self._fuse(False)
        try:
            yield
        finally:
            if fused:
                self._fuse(True)

    def close(self) -> None:
        """Put everything back as it was. Steps may go on afterwards: they set it up again."""
        self._settings.close()
        if self._ahead:
            self._ahead.close()
            self._ahead = None
        self._entered_at = 0.0
        self._remember()
        self._set_up(Recipe())

    # -- inside

    def _recipe(self, batch: Any) -> Recipe:
        """Of the step that begins."""
        if self._fixed:
            if self._facts is None:
                self._facts = _Facts(self._model, self._optimizer)
                asked, self._fixed = self._fixed, self._facts.possible(self._fixed)
                if self._fixed.but(threads=asked.threads) != asked:
                    self.news = f"training.step is {asked}; this machine or training has of it {self._fixed}"
            return self._fixed
        if self._chooser is None:
            if not self.steps:  # the first one comes as soon as it can
                return Recipe()
            self._begin(batch)
        assert self._chooser is not None
        self._size = _numel(batch)
        return self._chooser.recipe

    def _beside(self, recipe: Recipe) -> Recipe:
        """While another process compiles, a processor is left to it: threads that wait for one are far slower than fewer."""
        if self._ahead is None or self._facts is None or recipe.threads is not None:
            return recipe
        return recipe.but(threads=max(1, self._facts.threads - 1))

    def _begin(self, batch: Any) -> None:
        self._facts = facts = _Facts(self._model, self._optimizer)
        self._first_size = _numel(batch)
        more = "" if self._rule is None else f", {self._rule.accumulate}, {self._rule.amp}"
        form = "own loop" if self.own_loop else "train_fn"
        key = key_of(self._model, self._optimizer, signature(batch), torch.get_num_threads(), f"{more}, {form}")
        self._memory = Remembered(key, self._cache)
        self.news = f"{self._memory.problem}: ignored" if self._memory.problem else None
        start = Recipe()
        if self._memory.recipe:
            start = facts.possible(self._memory.recipe)
            if start.graph != "eager" and self._why_not_whole and start.graph == "whole":
                start = start.but(graph="eager", fused=facts.fusable)
        moves: list[Move] = facts.moves("model" if self.own_loop else "whole")
        waiting = None
        if self._memory.recipe:
            moves = [] if self._memory.complete else moves[-2:]
            if start.graph != "eager":
                waiting, start = start, start.but(graph="eager", fused=facts.fusable)
        self._chooser = Chooser(start, moves, self._to_come)
        self._chooser.waiting = waiting

    def _to_come(self) -> int | None:
        total = self._total()
        return None if total is None else total - self.steps

    def _took(self, seconds: float) -> None:
        self._seconds += seconds
        if not self._last:
            return
        seconds, self._seconds = self._seconds, 0.0
        self.steps += 1
        chooser = self._chooser
        if chooser is None or not self._countable:
            return
        if self._size != self._first_size and self._size:
            seconds *= self._first_size / self._size
        chooser.took(seconds)
        if chooser.settled and chooser.best != self._written:
            self._remember()

    def _remember(self) -> None:
        chooser, memory = self._chooser, self._memory
        if chooser and memory and chooser.trials and chooser.best != self._written:
            self._written = chooser.best
            whole = (
                self._whole.compile_seconds if self._whole and self._whole.compiled_steps else memory.compile_seconds
            )
            memory.problem = ""
            memory.write(chooser.best, chooser.settled, self.choice(), whole)
            if memory.problem and not self._forgetful:  # said once, not at each choice
                self._forgetful, self.news = True, memory.problem
            self.chosen = self.choice()

    def _consider_compiling(self, batch: Any) -> None:
        """A compiled recipe waits: compile ahead of it if that pays, and try it once that is done."""
        chooser, whole, memory = self._chooser, self._whole, self._memory
        assert chooser is not None
        assert whole is not None
        assert chooser.waiting is not None
        if self._ahead is not None:
            if not self._ahead.running:
                self._ahead = None
                chooser.start(chooser.waiting)
            return
        if whole.reason:
            self._not_whole(chooser.waiting)
            return
        if chooser.waiting.graph == "model":
            if self._pays(_MODEL_SECONDS):
                chooser.start(chooser.waiting)
            return
        known = memory.compile_seconds if memory else None
        cost = _WHOLE_SECONDS + _TENSOR_SECONDS * sum(len(group["params"]) for group in self._optimizer.param_groups)
        self._shapes[signature(batch)] += 1
        if not self._pays(cost if known is None else min(known, cost)):
            return
        if known is None:
            with machine.in_force(chooser.waiting):
                self._ahead = whole.ahead(batch)
        if whole.reason:
            self._not_whole(chooser.waiting)
        elif self._ahead is None:  # in the cache already, or no process can be forked here
            chooser.start(chooser.waiting)

    def _pays(self, cost: float) -> bool:
        """Whether the steps to come will win back a compile of `cost` seconds, as far as one can know.

        The share of a step that a compiled one saves is Python and small kernels: by experience, the more the shorter.
        Each frequent shape of batch costs a compile, up to three; batches of other shapes gain nothing.
        """
        chooser = self._chooser
        self._asked += 1
        if self._asked % 16 or chooser is None or not chooser.seconds > 0:
            return False
        seconds = chooser.seconds
        gain = 0.5 if seconds < 2e-3 else 0.35 if seconds < 1e-2 else 0.15 if seconds < 5e-2 else 0.08
        seen = self._shapes.total() or 1
        frequent = [count for _, count in self._shapes.most_common(MOST_SHAPES) if count > _RARE * seen] or [seen]
        return gain * sum(frequent) / seen * chooser.remaining * seconds > 1.3 * cost * len(frequent)

    def _not_whole(self, recipe: Recipe) -> None:
        """A step was not taken whole: for good, if there is a reason."""
        whole, facts = self._whole, self._facts
        assert whole is not None
        if not whole.reason:
            return
        if whole.reason != self._reason:
            self._reason = whole.reason
            if self._fixed or self._chooser is None or self._chooser.recipe.graph == "whole":
                self.news = f"steps are taken eagerly: {whole.reason}"
        if self._chooser and facts:
            self._chooser.failed(recipe, recipe.but(graph="eager", fused=facts.fusable))
            if recipe.graph == "whole" and not whole.reason.startswith("it does not compile"):
                self._chooser.also(("the model compiled", lambda best: facts.possible(best.but(graph="model"))))

    def _check_model(self) -> None:
        """A model that could not be compiled is said once, and its recipe given up."""
        failed, chooser = self._compiled_model, self._chooser
        if failed and failed.reason and failed.reason != self._reason:
            self._reason = failed.reason
            self.news = f"the model is not compiled: {failed.reason}"
            if chooser:
                chooser.failed(self._now, self._now.but(graph="eager"))

    def _set_up(self, recipe: Recipe) -> None:
        """Optimizer, memory format, allocator and model as the recipe says."""
        now = self._now
        if recipe is now or recipe == now:
            return
        self._now = recipe
        if recipe.fused != now.fused:
            self._fuse(recipe.fused)
        if recipe.channels_last != now.channels_last:
            set_channels_last(self._model, self._optimizer, recipe.channels_last)
        if recipe.allocator != now.allocator:
            (machine.Allocator.hold if recipe.allocator else machine.Allocator.release)(self)
        if (recipe.graph == "model") != (now.graph == "model"):
            if self._compiled_model is None:
                self._compiled_model = CompiledModel(self._model)
            self._compiled_model.on(recipe.graph == "model")

    def _fuse(self, wanted: bool) -> None:
        groups = self._optimizer.param_groups
        if wanted:
            self._flags = [{name: group.get(name) for name in ("fused", "foreach")} for group in groups]
            for group in groups:
                group.update(fused=True, foreach=False)
            return
        for group, flags in zip(groups, self._flags, strict=False):
            group.update(flags)


class _Facts:
    """What a training allows: which recipes there are for it."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        devices = {p.device.type for p in parameters}
        sparse = any(getattr(m, "sparse", False) is True for m in model.modules())
        usual = all(not g.get("differentiable") and not g.get("capturable") for g in optimizer.param_groups)
        self.on_cpu = devices == {"cpu"}
        self.fusable = (
            type(optimizer) in (SGD, Adam, AdamW, Adagrad)
            and len(devices) == 1
            and devices <= {"cpu", "cuda"}
            and not (devices == {"cuda"} and type(optimizer) is Adagrad)
            and all(p.is_floating_point() for p in parameters)
            and usual
            and not sparse
        )
        self.images = any(isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)) for m in model.modules())
        self.threads = torch.get_num_threads()

    def possible(self, recipe: Recipe) -> Recipe:
        """The recipe without what this machine or this training does not have."""
        return recipe.but(
            fused=recipe.fused and self.fusable,
            onednn=recipe.onednn and self.on_cpu and machine.onednn_is_exact(),
            threads=recipe.threads if recipe.threads != self.threads else None,
            allocator=recipe.allocator and self.on_cpu and machine.can_keep_memory(),
        )

    def moves(self, graph: str) -> list[Move]:
        """What to try, in this order."""

        def change(**fields: Any) -> Callable[[Recipe], Recipe | None]:
            return lambda best: self.possible(best.but(**fields))

        # Threads first: on a busy machine they disturb all that is tried with more of them. Again after the products.
        threads = lambda best: self.possible(best.but(threads=1 if best.threads is None else None))  # noqa: E731
        several = self.on_cpu and self.threads > 1
        moves: list[Move] = [("the other number of threads", threads)] if several else []
        moves.append(("the fused optimizer", change(fused=True)))
        if self.on_cpu:
            moves.append(("matrix products by oneDNN", change(onednn=True)))
            if several:
                moves.append(("the other number of threads", threads))
        if self.images:
            moves.append(("channels last", change(channels_last=True)))
        if self.on_cpu:
            moves.append(("memory kept", change(allocator=True)))
        if graph == "model":
            moves.append(("compiled", change(graph="model")))
        else:
            moves.append(("compiled whole", change(graph="whole", fused=False)))
            alone = lambda best: None if best.graph == "whole" else self.possible(best.but(graph="model"))  # noqa: E731
            moves.append(
                ("the model compiled", alone)
            )  # with fused kernels for the update: the better one for convolutions
        if self.on_cpu:
            moves.append(("the other matrix products", lambda best: self.possible(best.but(onednn=not best.onednn))))
        return moves


def set_channels_last(model: nn.Module, optimizer: Optimizer, wanted: bool) -> None:
    """Weights of convolutions, and the optimizer's state of them, in or out of the memory format channels_last, in place."""
    form = torch.channels_last if wanted else torch.contiguous_format
    for p in model.parameters():
        if p.dim() == 4:
            p.data = p.data.contiguous(memory_format=form)
            if p.grad is not None:
                p.grad.data = p.grad.data.contiguous(memory_format=form)
            for value in optimizer.state.get(p, {}).values():
                if isinstance(value, Tensor) and value.shape == p.shape:
                    value.data = value.data.contiguous(memory_format=form)


def _numel(batch: Any) -> int:
    from flodl.data.batch import leaves

    return next((v.numel() for _, v in leaves(batch) if isinstance(v, Tensor)), 0)
