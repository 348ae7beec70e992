"""What the loader takes, under the trainer: the same weights however the data is fetched and wherever it was resumed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import flodl as fl


class Noisy:
    """Augments with the global generator."""

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> Any:
        x = torch.randn(4) + index / 50
        return x, x.sum()


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for index in range(50):
            yield Noisy()[index]


def train(source: Any, epochs: int, stop_after: int | None = None, resume_at: int = 0, **settings: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    with fl.Trainer.setup(model, optimizer, source, batch_size=8, quiet=True, folder="runs", **settings) as trainer:
        if resume_at:
            trainer.resume(max(Path("runs").iterdir(), key=lambda folder: folder.stat().st_mtime))
            assert trainer.global_step == resume_at
        for _ in trainer.epochs(epochs):
            for x, y in trainer.batches():
                trainer.step((trainer.model(x).squeeze(1) - y).square().mean())
                if trainer.global_step == stop_after:
                    trainer.stop()
    return model.state_dict()


@pytest.mark.parametrize("source", [Noisy(), Stream()], ids=["by index", "stream"])
def test_the_same_weights_wherever_batches_are_fetched_and_the_run_was_stopped(source: Any, tmp_path: Path) -> None:
    expected = train(source, 3, workers=0, prefetch=0)
    for way in ({"workers": 1}, {"workers": 2, "prefetch": 1}, {}):
        found = train(source, 3, **way)
        assert all(torch.equal(expected[name], found[name]) for name in expected), way
    for step in (3, 7, 9):
        train(source, 3, stop_after=step, workers=0, prefetch=0)
        found = train(source, 3, resume_at=step, workers=1)
        assert all(torch.equal(expected[name], found[name]) for name in expected), step


def test_a_data_loader_is_trained_on_and_its_batch_size_said(capfd: pytest.CaptureFixture[str]) -> None:
    loader = DataLoader(Noisy(), batch_size=25, shuffle=True)
    model = nn.Linear(4, 1)
    trainer = fl.Trainer.setup(model, torch.optim.SGD(model.parameters(), 0.01), loader, batch_size=8, folder="runs")
    sizes = []
    for _ in trainer.epochs(1):
        for x, y in trainer.batches():
            sizes.append(len(x))
            trainer.step((trainer.model(x).squeeze(1) - y).square().mean())
    trainer.close()
    assert sizes == [25, 25]
    assert "not of 8" in "".join(capfd.readouterr())
