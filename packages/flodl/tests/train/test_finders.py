"""The finders against a hand-written sweep and known limits; bits before and after."""

from __future__ import annotations

import copy
import math
import mmap
import random
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, Optimizer

import flodl as fl
from flodl.train.batch_size import _Sampled, find_batch_size
from flodl.train.learning_rate import find_learning_rate
from flodl.train.schedule import make_schedule
from flodl.train.trials import untouched


class Model(nn.Module):
    """With everything that a step may leave a trace in."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
        self.register_buffer("last", None)
        self.inner[1].eval()
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        self.last = x.detach().mean(0)  # replaces a buffer, as carried state does
        return self.inner(x)  # type: ignore[no-any-return]


def batches(number: int = 7, size: int = 16) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(number, size, 6, generator=generator)
    return [(part, part[:, :3].argmax(1)) for part in x]


def train_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    random.random(), np.random.rand()
    return F.cross_entropy(model(batch[0]), batch[1])


def prepared(kind: str) -> tuple[nn.Module, Optimizer, Any]:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = Model()
    groups = [{"params": [*model.inner.parameters()], "lr": 0.02}, {"params": [model.frozen]}]
    optimizer: Optimizer
    if kind == "sgd":
        optimizer = SGD(groups, lr=0.1, momentum=0.9)
    else:
        optimizer = Adam(groups, lr=torch.tensor(0.1) if kind == "tensor lr" else 0.1, amsgrad=True)
    scheduler = make_schedule("cosine", optimizer, total_steps=50)
    if kind != "no state yet":
        for batch in batches(2):
            train_fn(model, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            scheduler.step()
        model.inner[0].bias.grad = None  # one is absent, the others are there
    return model, optimizer, scheduler


def everything(model: nn.Module, optimizer: Optimizer, scheduler: Any) -> dict[str, Any]:
    """All that the next step depends on."""
    return copy.deepcopy(
        {
            "parameters": list(model.parameters()),
            "buffers": [dict(m._buffers) for m in model.modules()],
            "gradients": [p.grad for p in model.parameters()],
            "modes": [m.training for m in model.modules()],
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "rng": (random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()),
        }
    )


def same(a: Any, b: Any) -> bool:
    if isinstance(a, (Tensor, np.ndarray)):
        a, b = torch.as_tensor(a).detach(), torch.as_tensor(b).detach()
        return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


KINDS = ["adam", "no state yet", "sgd", "tensor lr"]


@pytest.mark.parametrize("error", [None, KeyError, KeyboardInterrupt])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_changed_also_when_the_train_fn_fails(kind: str, error: type[BaseException] | None) -> None:
    calls = 0

    def failing(model: nn.Module, batch: Any) -> Tensor:
        nonlocal calls
        calls += 1
        if error and calls == 4:
            raise error
        model.train()
        return train_fn(model, batch)

    def run(search: Callable[[], Any]) -> None:
        nonlocal calls
        calls = 0
        before = everything(*made)
        objects = [*made[0].parameters(), *(p.grad for p in made[0].parameters()), *made[1].state.values()]
        if error:
            with pytest.raises(error):
                search()
        else:
            search()
        assert calls >= 4
        assert same(everything(*made), before)
        now = [*made[0].parameters(), *(p.grad for p in made[0].parameters()), *made[1].state.values()]
        assert all(a is b for a, b in zip(objects, now, strict=True))

    made = prepared(kind)
    data = tuple(torch.cat(part) for part in zip(*batches(), strict=True))
    run(lambda: find_learning_rate(made[0], failing, optimizer=made[1], batches=batches(), steps=20))
    run(lambda: find_batch_size(made[0], failing, optimizer=made[1], dataset=data, smallest=8, steps=2))


def test_training_goes_on_as_if_nothing_had_been_tried() -> None:
    results = []
    for tried in (False, True):
        model, optimizer, scheduler = prepared("adam")
        if tried:
            find_learning_rate(model, train_fn, optimizer=optimizer, batches=batches(), steps=10)
        for batch in batches():
            optimizer.zero_grad()
            train_fn(model, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            scheduler.step()
        results.append(everything(model, optimizer, scheduler))
    assert same(*results)


def test_the_sweep_is_the_hand_written_one() -> None:
    model, optimizer, _ = prepared("sgd")
    twin, other, _ = prepared("sgd")
    for a, b in zip(twin.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)
    torch.manual_seed(9)
    found = find_learning_rate(
        model, train_fn, optimizer=optimizer, batches=batches(), lowest=1e-4, highest=1e3, steps=30, diverged=3
    )
    torch.manual_seed(9)
    losses, ratio = [], other.param_groups[1]["lr"] / other.param_groups[0]["lr"]
    for step in range(len(found.losses)):
        rate = 10 ** (-4 + 7 * step / 29)
        other.param_groups[0]["lr"], other.param_groups[1]["lr"] = rate / ratio, rate
        other.zero_grad()
        loss = train_fn(twin, batches()[step % 7])
        losses.append(loss.item())
        loss.backward()  # type: ignore[no-untyped-call]
        other.step()
    assert found.losses == pytest.approx(losses, rel=1e-5)
    assert found.rates == pytest.approx([10 ** (-4 + 7 * i / 29) for i in range(len(losses))])
    assert found.smoothed[5] == pytest.approx(sum(losses[4:7]) / 3)
    assert found.diverged
    assert len(losses) < 30


def test_the_suggestion_trains_and_ten_times_the_limit_does_not() -> None:
    """A quadratic with the largest curvature L diverges, in plain gradient descent, beyond 2 / L."""
    torch.manual_seed(0)
    scale = torch.tensor([1.0, 0.3, 0.1, 0.03]) * 4.0

    def quadratic(model: nn.Module, _: Any) -> Tensor:
        return 0.5 * (scale * model.weight**2).sum()  # type: ignore[operator, union-attr, no-any-return]

    model = nn.Linear(4, 1, bias=False)
    nn.init.constant_(model.weight, 3.0)
    optimizer = SGD(model.parameters(), lr=0.1)
    found = find_learning_rate(model, quadratic, optimizer=optimizer, batches=[None], steps=200, highest=100.0)
    assert found.suggestion is not None
    assert 0.01 / 4 < found.suggestion < 2 / 4
    assert found.diverged
    assert found.rates[-1] > 2 / 4


def test_a_loss_that_never_falls_has_no_suggestion_and_nan_ends_the_sweep() -> None:
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.1)

    def rising(model: nn.Module, _: Any) -> Tensor:
        rising.calls += 1  # type: ignore[attr-defined]
        return model.weight.sum() * 0 + 1.0 + rising.calls * 0.01  # type: ignore[union-attr, operator, attr-defined, no-any-return]

    rising.calls = 0  # type: ignore[attr-defined]
    found = find_learning_rate(model, rising, optimizer=optimizer, batches=[0], steps=50)
    assert found.suggestion is None
    assert not found.diverged
    assert "no rate makes the loss fall" in str(found)
    nan = find_learning_rate(model, lambda m, _: m.weight.sum() * math.nan, optimizer=optimizer, batches=[0], steps=50)
    assert nan.diverged
    assert len(nan.losses) == 1
    assert nan.suggestion is None
    ET.fromstring(nan.svg())


def test_the_curve_is_printed_and_drawn(tmp_path: Path) -> None:
    model, optimizer, _ = prepared("adam")
    found = find_learning_rate(model, train_fn, optimizer=optimizer, batches=batches(), highest=100.0)
    assert found.suggestion is not None
    assert 1e-4 < found.suggestion < 1
    assert f"suggestion: {found.suggestion:.2g}" in str(found)
    assert len(str(found).splitlines()) < 30
    text = found.svg(tmp_path / "curve.svg")
    assert (tmp_path / "curve.svg").read_text() == text
    root = ET.fromstring(text)
    lines = [e for e in root.iter() if e.tag.endswith("polyline")]
    points = [tuple(map(float, p.split(","))) for p in lines[1].attrib["points"].split()]
    assert len(points) == len(found.rates)
    assert all(0 <= x <= 640 and 0 <= y <= 360 for x, y in points)
    assert [x for x, _ in points] == sorted(x for x, _ in points)


def test_a_trainer_is_tried_without_counting_a_step() -> None:
    torch.manual_seed(0)
    model = Model()
    data = tuple(torch.cat(part) for part in zip(*batches(), strict=True))

    def trained(tried: bool) -> tuple[dict[str, Tensor], int]:
        own = copy.deepcopy(model)
        trainer = fl.Trainer.setup(
            own, Adam(own.parameters(), lr=0.01), data, batch_size=16, record=False, quiet=True, clip_norm=1.0
        )
        torch.manual_seed(3)
        with trainer:
            for _ in trainer.epochs(2):
                for n, batch in enumerate(trainer.batches()):
                    if tried and n == 3:
                        found = find_learning_rate(trainer, train_fn, steps=12)
                        assert len(found.losses) == 12
                        sizes = find_batch_size(trainer, lambda m, b: (train_fn(m, b), {"a": 1.0}), smallest=32)
                        assert sizes.largest == 112  # the whole dataset
                    trainer.step(train_fn(trainer.model, batch))
            return own.state_dict(), trainer.global_step

    assert same(trained(True), trained(False))


class Sentences(torch.utils.data.Dataset[Tensor]):
    """Sample by sample, of lengths from 1 to 10."""

    def __init__(self) -> None:
        self.lengths = [1 + i * 7 % 10 for i in range(40)]

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> Tensor:
        return torch.full((self.lengths[i], 1), float(i))


def test_batches_that_are_fetched_ahead_come_as_if_nothing_had_been_tried() -> None:
    def seen(tried: bool) -> tuple[list[float], list[int]]:
        model, found, longest = nn.Linear(1, 1), [], []

        def train_fn(model: nn.Module, batch: Tensor) -> Tensor:
            longest.append(batch.shape[1])
            return model(batch).mean()  # type: ignore[no-any-return]

        loader = torch.utils.data.DataLoader(Sentences(), batch_size=4, collate_fn=fl.data.pad_collate())
        trainer = fl.Trainer.setup(
            model, SGD(model.parameters(), lr=0.0), loader, prefetch=2, record=False, quiet=True, group_by_length=True
        )
        with trainer:
            for _ in trainer.epochs(2):
                for n, batch in enumerate(trainer.batches()):
                    if tried and n == 4:
                        find_learning_rate(trainer, train_fn, steps=12)
                        longest.clear()
                        find_batch_size(trainer, train_fn, largest=4)
                    found.append(batch.sum().item())
                    trainer.step(model(batch).mean())
        return found, longest

    found, longest = seen(True)
    assert found == seen(False)[0]
    assert set(longest) == {10}


@pytest.mark.parametrize("limit", [1, 2, 3, 37, 64, 100])
@pytest.mark.parametrize("error", [MemoryError("full"), torch.OutOfMemoryError("CUDA out of memory")])
def test_the_largest_size_is_found_by_doubling_and_halving(limit: int, error: Exception) -> None:
    model = nn.Linear(2, 1)
    seen: list[int] = []

    def bounded(model: nn.Module, batch: Tensor) -> Tensor:
        if not seen or seen[-1] != len(batch):
            seen.append(len(batch))
        if len(batch) > limit:
            raise error
        return model(batch).square().mean()  # type: ignore[no-any-return]

    found = find_batch_size(
        model, bounded, optimizer=SGD(model.parameters(), lr=0.1), dataset=torch.randn(100, 2), steps=1
    )
    assert found.largest == limit
    assert [t.size for t in found.trials] == seen
    assert all(t.fits == (t.size <= limit) for t in found.trials)
    assert len(seen) <= 2 * math.log2(128)
    assert all((t.samples_per_second is not None) == t.fits for t in found.trials)
    best = max(t.samples_per_second or 0 for t in found.trials)
    (chosen,) = [t for t in found.trials if t.size == found.suggestion]
    assert (chosen.samples_per_second or 0) >= 0.95 * best
    assert f"largest: {limit}, suggestion: {found.suggestion}" in str(found)


def test_memory_is_measured_and_a_limit_kept() -> None:
    """Each sample keeps 2 MiB until the backward."""

    def wide(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).repeat(1, 2**19).square().mean()  # type: ignore[no-any-return]

    model = nn.Linear(2, 1)
    limit = 160 * 2**20
    found = find_batch_size(
        model, wide, optimizer=SGD(model.parameters(), lr=0.1), dataset=torch.randn(1000, 2), memory=limit, steps=1
    )
    measured = {t.size: t.peak_bytes for t in found.trials if t.samples_per_second is not None}
    assert (measured[found.largest] or 0) <= limit
    assert 3 <= found.largest < 80
    for size, peak in measured.items():
        if size >= 4:
            assert peak is not None
            assert peak > 0.8 * size * 2**21
    assert max(measured) * 2**21 < 2 * limit  # what cannot fit was not tried


def test_memory_is_also_seen_where_the_system_does_not_count_it() -> None:
    before = psutil.Process().memory_info().rss
    watch = _Sampled()
    with watch, mmap.mmap(-1, 2**26) as held:  # memory that was not in use before, unlike an allocator's
        for page in range(0, 2**26, mmap.PAGESIZE):
            held[page] = 1
        time.sleep(0.3)
    assert watch.peak - before > 0.9 * 2**26


def test_wrong_calls_are_told() -> None:
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1)

    class Stream(torch.utils.data.IterableDataset[Tensor]):
        def __iter__(self) -> Any:
            return iter(torch.zeros(4, 2))

    streamed = fl.Trainer.setup(model, optimizer, Stream(), record=False, quiet=True)
    for call, message in [
        (lambda: find_learning_rate(model, train_fn), "a model needs its optimizer here"),
        (lambda: find_learning_rate(model, train_fn, optimizer=optimizer), "needs batches: give batches=..."),
        (lambda: find_learning_rate(model, train_fn, optimizer=optimizer, batches=[], lowest=2, highest=1), "0 < lowest"),
        (lambda: find_learning_rate(model, train_fn, optimizer=optimizer, batches=[]), "there is no batch to train on"),
        (lambda: find_learning_rate(model, lambda m, b: None, optimizer=optimizer, batches=[1]), "the loss is NoneType"),
        (lambda: find_learning_rate(streamed, train_fn), "a trainer whose dataset has an index"),
        (lambda: find_batch_size(streamed, train_fn), "is a"),
        (lambda: find_batch_size(model, train_fn, optimizer=optimizer), "needs a dataset"),
        (lambda: find_batch_size(model, train_fn, optimizer=optimizer, dataset=torch.ones(3, 2), smallest=4), "smallest <= 3"),
    ]:  # fmt: skip
        with pytest.raises(fl.FlodlError) as error:
            call()
        assert message in str(error.value)

    def full(model: nn.Module, batch: Any) -> Tensor:
        raise MemoryError

    with pytest.raises(fl.TrainingError, match="not even a batch of 2 fits"):
        find_batch_size(model, full, optimizer=optimizer, dataset=torch.ones(3, 2), smallest=2)
    with pytest.raises(RuntimeError, match="shapes"):  # no matter of memory
        find_batch_size(model, lambda m, b: m(b.T), optimizer=optimizer, dataset=torch.ones(3, 2))


def test_untouched_restores_more_than_once() -> None:
    made = prepared("adam")
    before = everything(*made)
    with untouched(made[0], made[1]) as snapshot:
        for _ in range(2):
            train_fn(made[0], batches()[0]).backward()  # type: ignore[no-untyped-call]
            made[1].step()
            snapshot.restore()
            assert same(everything(*made), before)
    assert same(everything(*made), before)
