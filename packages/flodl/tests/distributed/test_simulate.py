"""Predictions: known limits, the order of policies, bad input; and the command."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import flodl as fl
from flodl.distributed import cli, simulate
from flodl.distributed.simulate import exchange_seconds, parse_fleet

QUIET = {"jitter": 0.0, "stall": 0.0, "throttle": 0.0}


def test_lockstep_is_as_slow_as_its_slowest() -> None:
    found = simulate([1.0, 0.4], step_ms=10, parameters=1, network="NVLink", policy="lockstep", **QUIET)
    assert found.efficiency == pytest.approx(2 * 0.4 / 1.4, rel=1e-3)
    shared = simulate([1.0, 0.4], step_ms=10, parameters=1, network="NVLink", policy="sync", **QUIET)
    assert shared.efficiency == pytest.approx(1.0, rel=1e-2)


def test_meeting_costs_what_is_aimed_at() -> None:
    found = simulate([1.0, 1.0], step_ms=10, parameters=1e6, network="1GbE", overhead_target=0.1, meetings=300, **QUIET)
    assert found.efficiency == pytest.approx(1 / 1.1, abs=0.03)


@pytest.mark.parametrize("ranks", [2, 64, 1024])
def test_policies_in_their_order(ranks: int) -> None:
    speeds = [1.0, 0.4] * (ranks // 2)
    found = {p: simulate(speeds, step_ms=200, parameters=1e8, network="10GbE", policy=p, meetings=60).efficiency  # type: ignore[arg-type]
             for p in ("lockstep", "cadence", "async", "hierarchical")}  # fmt: skip
    assert found["lockstep"] < 0.6 < 0.75 < found["cadence"] < found["async"] <= 1.02
    assert found["hierarchical"] > 0.75


def test_only_ddp_hides_its_exchange() -> None:
    """Sync's sum begins when the backward pass has ended: 100 MB at 1 ms a batch are hardly anything else."""
    settings = {"step_ms": 1.0, "parameters": 25e6, "network": "10GbE", **QUIET}
    exchange = exchange_seconds(2, 25e6, "10GbE")
    for policy, shown in (("lockstep", 0.3), ("sync", 1.0)):
        found = simulate([1.0, 1.0], policy=policy, **settings)  # type: ignore[arg-type]
        assert found.efficiency == pytest.approx(1e-3 / (1e-3 + shown * exchange), rel=1e-3)


def test_windows_are_no_longer_than_training_makes_them() -> None:
    found = simulate([1.0, 0.5], step_ms=1, parameters=25e6, network="1GbE", **QUIET)
    assert found.anchor == fl.DdpConfig().max_anchor


def test_lost_ranks_cost_little() -> None:
    found = simulate("8x3090", step_ms=50, parameters=1e6, network="10GbE", failures=3, **QUIET)
    assert found.lost == 3
    assert found.efficiency > 0.8


def test_an_exchange_takes_what_its_bytes_take() -> None:
    assert exchange_seconds(1, 1e6, "1GbE") == 0
    assert exchange_seconds(2, 25e6, "1GbE") == pytest.approx(25e6 * 4 / 1.1e8, rel=0.01)
    assert exchange_seconds(1024, 1e3, "1GbE") < 0.01  # a tree, not a ring of 2,046 messages


def test_bad_input() -> None:
    assert parse_fleet("2x3090, GTX 1060, 0.5") == [1.0, 1.0, 0.12, 0.5]
    for text, said in (
        ("4x3091", "Did you mean '3090'"),
        ("x", "not known"),
        ("1,,2", "devices are such as"),
        ("99", "nor a"),
    ):
        with pytest.raises(fl.ConfigError, match=said):
            parse_fleet(text)
    for given, said in (({"network": "2GbE"}, "no network '2GbE'"), ({"policy": "cadense"}, "Did you mean 'cadence'")):
        with pytest.raises(fl.ConfigError, match=said):
            simulate("3090", **{"step_ms": 1, "parameters": 1, **given})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step_ms", float("inf")), ("parameters", float("nan")), ("overhead_target", 0), ("max_anchor", 0), ("seed", -1),
        ("jitter", -1), ("stall", 2), ("per_host", 0), ("meetings", 0), ("batch_size", 0), ("failures", 2),
    ],
)  # fmt: skip
def test_numbers_that_cannot_be(name: str, value: float) -> None:
    with pytest.raises(fl.ConfigError, match=f"{name} is {value}; "):
        simulate("2x1", **{"step_ms": 1, "parameters": 1, name: value})  # type: ignore[arg-type]


def test_speeds_that_cannot_be() -> None:
    for speeds in ([], [1.0, 0.0], [1.0, -1.0], [float("nan")]):
        with pytest.raises(fl.ConfigError, match="a speed above 0"):
            simulate(speeds, step_ms=1, parameters=1)


def test_more_ranks_are_lost_than_there_are_meetings() -> None:
    found = simulate([1.0] * 64, step_ms=50, parameters=1e6, network="10GbE", meetings=8, failures=60)
    assert found.lost == 60
    assert 0 < found.efficiency < 1


def test_nobody_reads_what_it_prints() -> None:
    words = ["simulate", "--devices", "2x1", "--step-ms", "5", "--parameters", "1M", "--json"]
    command = [sys.executable, "-m", "flodl_cli", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    process.stdout.close()
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (141, "")


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--devices", "4x3090, 2x1060", "--step-ms", "120", "--parameters", "25M", "--network", "1GbE"]
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()[1:]] == [
        "lockstep",
        "sync",
        "cadence",
        "async",
        "hierarchical",
    ]
    assert cli.main([*words, "--policy", "async", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["ranks"] == 6
    rough = ["--policy", "cadence", "--jitter", "0", "--stall", "0", "--throttle", "0.5", "--max-anchor", "4", "--json"]
    assert cli.main([*words, *rough, "--per-host", "2", "--within-host", "NVLink"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["anchor"] <= 4
    assert cli.main([*words[:-1], "1GbF"]) == 2
    assert "no network '1GbF'" in capsys.readouterr().err
