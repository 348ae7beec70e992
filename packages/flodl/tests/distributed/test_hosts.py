"""Several hosts, of which each averages among its own ranks more often than with the others: four ranks, as two hosts."""

from __future__ import annotations

import copy
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import flodl as fl

HERE = Path(__file__).parent
State = dict[str, Tensor]
# Meetings of all: the first two, each third one, the last one of an epoch of 8, and the one after an evaluation fell due.
GLOBAL = [0, 1, 3, 5, 6, 7, 9, 12, 15]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("hosts")
    command = [sys.executable, "-W", "error", str(HERE / "hosts.py"), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return [torch.load(out / f"{rank}.pt", weights_only=False) for rank in range(4)]


def mean(states: list[State]) -> State:
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}


def test_hosts_average_less_often_than_their_ranks(results: list[dict[str, Any]]) -> None:
    """Against four models and their means by hand, on the batches that the ranks had."""
    spec = importlib.util.spec_from_file_location("scenarios_of_hosts", HERE / "scenarios.py")
    assert spec
    assert spec.loader
    scenarios = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scenarios)
    data = scenarios.Numbered(128)
    ranks = [result["hosts"] for result in results]
    batches = [torch.tensor([n for epoch in rank["seen"] for n in epoch]).view(-1, 4) for rank in ranks]
    models: list[nn.Module] = [scenarios.make_model() for _ in ranks]
    for window in range(16):
        for rank, model, chosen in zip(ranks, models, batches, strict=True):
            torch.testing.assert_close(dict(model.state_dict()), rank["weights"][window], rtol=1e-12, atol=1e-12)
            model.zero_grad()
            F.mse_loss(model(data.x[chosen[window]]), data.y[chosen[window]]).backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.05 * p.grad
        states = [copy.deepcopy(model.state_dict()) for model in models]
        together = [[0, 1, 2, 3]] if window in GLOBAL else [[0, 1], [2, 3]]
        for group in together:
            for rank_number in group:
                models[rank_number].load_state_dict(mean([states[other] for other in group]))
    for rank in ranks:
        torch.testing.assert_close(rank["state"], dict(models[0].state_dict()), rtol=1e-12, atol=1e-12)
        assert rank["steps"] == 64


def test_between_hosts_weights_differ_until_they_meet(results: list[dict[str, Any]]) -> None:
    for window in range(1, 16):
        first, second, third = (result["hosts"]["weights"][window]["0.weight"] for result in results[:3])
        assert torch.equal(first, second)
        assert torch.equal(first, third) == (window - 1 in GLOBAL)


@pytest.mark.parametrize("name", ["hosts", "async"])
def test_what_is_due_while_ranks_differ_is_done_when_they_are_equal(results: list[dict[str, Any]], name: str) -> None:
    evaluated = [result[name]["evaluated"] for result in results]
    assert all(steps == evaluated[0] for steps in evaluated)
    tens = [step // 10 for step in evaluated[0]]
    assert tens == sorted(set(tens))  # at most once for each time that ten updates were made
    assert tens[-1] == 6
    assert len(tens) == 6 or name == "async"
    assert len(tens) >= 4


@pytest.mark.parametrize("policy", ["sync", "async"])
def test_it_is_for_cadence(policy: Any) -> None:
    with pytest.raises(fl.ConfigError, match=f'ddp.hosts_every is 2; it must be 1 under policy "{policy}"'):
        fl.DdpConfig(policy=policy, hosts_every=2)
