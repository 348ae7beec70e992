"""What the policies train, on two real ranks, against loops by hand. One launch serves all tests: see `scenarios.py`."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl.data.order import epoch_order

HERE = Path(__file__).parent
Results = list[dict[str, Any]]

_spec = importlib.util.spec_from_file_location("scenarios", HERE / "scenarios.py")
assert _spec
assert _spec.loader
scenarios = importlib.util.module_from_spec(_spec)
sys.modules["scenarios"] = scenarios
_spec.loader.exec_module(scenarios)
Branches, Numbered, make_model, mse = scenarios.Branches, scenarios.Numbered, scenarios.make_model, scenarios.mse


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    out = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-W", "error", str(HERE / "scenarios.py"), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return [torch.load(out / f"{rank}.pt", weights_only=False) for rank in range(2)]


def same(results: Results, name: str) -> dict[str, Tensor]:
    """The state that both ranks ended with."""
    first, second = (r[name]["state"] for r in results)
    for key in first:
        torch.testing.assert_close(first[key], second[key], rtol=0, atol=0, msg=f"{name}: {key}")
    return first  # type: ignore[no-any-return]


def by_hand(n: int, epochs: int, size: int, optimizer: Any, clip: float | None = None, model: Any = None) -> nn.Module:
    """The loop of one device on batches of `size`."""
    model, data = model or make_model(), Numbered(n)
    steps = optimizer(model.parameters())
    for epoch in range(epochs):
        for index in epoch_order(n, 0, epoch).split(size):
            steps.zero_grad()
            mse(model, (data.x[index], data.y[index])).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            steps.step()
    return model  # type: ignore[no-any-return]


def close(state: dict[str, Tensor], model: nn.Module, tolerance: float = 1e-12) -> None:
    for key, value in model.state_dict().items():
        torch.testing.assert_close(state[key], value, rtol=tolerance, atol=tolerance, msg=f"{key} differs")


def test_sync_is_one_big_batch(results: Results) -> None:
    adam = by_hand(64, 2, 8, lambda p: torch.optim.Adam(p, lr=0.01))
    close(same(results, "sync_equal"), adam, 1e-9)
    assert results[0]["sync_equal"]["steps"] == 16
    close(same(results, "sync_accumulate"), by_hand(64, 1, 8, lambda p: torch.optim.SGD(p, lr=0.05)))


def test_sync_shares_in_proportion_and_clips_the_mean(results: Results) -> None:
    close(same(results, "sync_uneven_last_batch"), by_hand(61, 2, 8, lambda p: torch.optim.SGD(p, lr=0.05), clip=0.1))
    counts = [len(r["sync_uneven_last_batch"]["seen"][0]) for r in results]
    assert sum(counts) == 61
    assert 2.5 < counts[0] / counts[1] < 3.5


def test_cadence_of_one_batch_with_sgd_is_sync(results: Results) -> None:
    close(same(results, "cadence_of_one_batch"), by_hand(64, 2, 8, lambda p: torch.optim.SGD(p, lr=0.05)))


@pytest.mark.parametrize("name", ["cadence_covers", "async_covers", "async_outer_ema_schedule"])
def test_every_sample_is_trained_once_an_epoch(results: Results, name: str) -> None:
    same(results, name)
    first, second = (r[name] for r in results)
    epochs = len(first["seen"])
    seen = Counter(i for r in (first, second) for epoch in r["seen"] for i in epoch)
    assert seen == Counter(dict.fromkeys(range(103), epochs))
    assert first["history"] == second["history"]
    assert all(math.isfinite(means["loss"]) for means in first["history"] if means)


def test_a_faster_rank_trains_more(results: Results) -> None:
    counts = [sum(map(len, r["cadence_covers"]["seen"])) for r in results]
    assert counts[0] > counts[1] > 0


def test_two_trainers_at_once_are_refused_one_after_the_other_are_not(results: Results) -> None:
    for result in results:
        said, steps = result["two_at_once"]
        assert "another trainer of this program trains on these devices" in said
        assert steps == [16, 16]


def test_a_dataset_smaller_than_the_ranks(results: Results) -> None:
    for number, policy in enumerate(("sync", "cadence", "async")):
        first, second = (r["tiny_dataset"][number] for r in results)
        torch.testing.assert_close(first["state"], second["state"], rtol=0, atol=0, msg=policy)
        assert sum(len(epoch) for r in (first, second) for epoch in r["seen"]) == 3, policy


def test_unused_frozen_and_tied_parameters_and_batchnorm(results: Results) -> None:
    before = Branches().double().state_dict()
    state = same(results, "branches_sync")
    for name in ("unused.weight", "frozen.weight"):  # no gradient on any rank: not even weight decay
        torch.testing.assert_close(state[name], before[name], rtol=0, atol=0)
    for name in ("a.weight", "b.weight", "norm.weight"):  # used on one rank only, or on both
        assert not torch.equal(state[name], before[name])
    assert torch.equal(state["tied.weight"], state["a.weight"])
    assert state["norm.running_mean"].abs().max() > 0
    cadence = same(results, "branches_cadence_thawed")
    assert not torch.equal(cadence["frozen.weight"], before["frozen.weight"])
    torch.testing.assert_close(cadence["unused.weight"], before["unused.weight"])


def test_sparse_gradients(results: Results) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(8, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x = torch.arange(64).view(32, 2) % 20
    for epoch in range(2):
        for index in epoch_order(32, 0, epoch).split(8):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[index]), torch.ones(len(index), 1, dtype=torch.float64)).backward()
            optimizer.step()
    close(same(results, "sparse_embedding"), model)


def test_other_memory_formats(results: Results) -> None:
    assert not same(results, "channels_last")["1.weight"].is_contiguous()


def test_nan_on_one_rank_does_not_reach_the_others(results: Results) -> None:
    for case in results[0]["nan_on_one_rank"]:
        first, second = (r["nan_on_one_rank"][case]["state"] for r in results)
        torch.testing.assert_close(first, second, rtol=0, atol=0, msg=case)
        assert all(bool(t.isfinite().all()) for t in first.values()), case


def test_loaders_of_different_lengths_never_hang(results: Results) -> None:
    for policy in ("sync", "cadence", "async"):
        first, second = (r["own_loader"][policy] for r in results)
        torch.testing.assert_close(first["state"], second["state"], rtol=0, atol=0, msg=policy)
        assert (first["count"], second["count"]) == (20, 6)
    same(results, "plain_loop")


def test_evaluation_is_shared(results: Results) -> None:
    model, data = make_model(), Numbered(37)
    model.load_state_dict(same(results, "evaluation"))
    expected = mse(model, (data.x, data.y)).item()
    for r in results:
        assert r["evaluation"]["mse"] == [pytest.approx(expected, rel=1e-9)]


def test_an_epoch_that_one_rank_leaves_is_over_for_all(results: Results) -> None:
    same(results, "left_early")
    assert [r["left_early"]["epochs"] for r in results] == [3, 3]


def test_all_stop_together(results: Results) -> None:
    for policy in ("sync", "cadence", "async"):
        for name in (policy, f"{policy} stop"):
            first, second = (r["limits"][name] for r in results)
            torch.testing.assert_close(first["state"], second["state"], rtol=0, atol=0, msg=name)
            assert first["steps"] == second["steps"]
        assert results[0]["limits"][policy]["steps"] == 40
        assert 3 <= results[0]["limits"][f"{policy} stop"]["steps"] < 200


def test_the_compiled_step_runs_inside_ranks(results: Results) -> None:
    state = same(results, "compiled")
    model, data = make_model().float(), Numbered(64)
    replicas = [make_model().float() for _ in range(2)]
    del model
    x, y = data.x.float(), data.y.float()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in replicas]
    position = 0
    while position < 128:  # windows of two batches for each rank, then the mean of both
        for replica, optimizer in zip(replicas, optimizers, strict=True):
            for at in (position, position + 4):
                index = epoch_order(64, 0, at // 64)[at % 64 : at % 64 + 4]
                optimizer.zero_grad()
                mse(replica, (x[index], y[index])).backward()
                optimizer.step()
            position += 8
        with torch.no_grad():
            for a, b in zip(replicas[0].parameters(), replicas[1].parameters(), strict=True):
                a.copy_((a + b) / 2)
                b.copy_(a)
    close(state, replicas[0], 1e-5)


def test_by_hand_gradients_are_weighted_means(results: Results) -> None:
    start = same(results, "by_hand")
    model, data = make_model(), Numbered(12)
    model.load_state_dict(start)
    mse(model, (data.x, data.y)).backward()
    for found in (r["by_hand"]["weighted"] for r in results):
        for grad, p in zip(found, model.parameters(), strict=True):
            torch.testing.assert_close(grad, p.grad)
    model.zero_grad()
    mse(model, (data.x[8:], data.y[8:])).backward()
    for found in (r["by_hand"]["halves"] for r in results):
        for grad, p in zip(found, model.parameters(), strict=True):
            assert p.grad is not None
            torch.testing.assert_close(grad, p.grad / 2)
    for a, b in zip(*(r["by_hand"]["buffers"] for r in results), strict=True):
        assert torch.equal(a, b)


def test_weights_in_one_vector_stay_what_they_are(results: Results) -> None:
    first, second = (r["flat_state"] for r in results)
    assert all(r["same"] and r["aligned"] for r in (first, second))
    assert set(first["before"]) - set(first["kept"]) == {"wide"}  # its memory has gaps; channels_last has none
    for name, value in first["before"].items():
        expected = (value.float() + 3 * second["before"][name].float()) / 4
        for found in (first["after"][name], second["after"][name]):
            torch.testing.assert_close(found, expected.to(value.dtype))
    assert [row.samples for row in first["rows"]] == [1.0, 2.0]
