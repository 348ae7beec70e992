"""Which build runs on which GPUs: a table."""

from __future__ import annotations

from typing import Any

import pytest

from flodl_cli.errors import CliError
from flodl_cli.machine.architectures import covers, parse_list
from flodl_cli.machine.builds import builds, cuda_of_driver, minimum_driver, toolkits_for
from flodl_cli.machine.readings import Gpu, parse_override
from flodl_cli.machine.variants import Refusal, Variant, choose

GTX_1060 = "6.1 NVIDIA GeForce GTX 1060 6GB"
GTX_1080_TI = "6.1 NVIDIA GeForce GTX 1080 Ti"
RTX_5060_TI = "12.0 NVIDIA GeForce RTX 5060 Ti"
ONLY = "then CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES"
H100 = "9.0 NVIDIA H100 80GB HBM3"


def chosen(gpus: str, driver: str | None, **options: Any) -> Variant | Refusal:
    return choose(parse_override(gpus).gpus, driver, **{"system": "Linux", "machine": "x86_64", **options})


@pytest.mark.parametrize(
    ("gpus", "driver", "tag", "version"),
    [
        ("", None, "cpu", "2.13.0"),
        ("", "580.65.06", "cpu", "2.13.0"),
        (GTX_1060, "535.183.01", "cu126", "2.13.0"),
        (GTX_1060, "580.65.06", "cu126", "2.13.0"),
        (GTX_1080_TI, "570.133.07", "cu126", "2.13.0"),  # the driver knows CUDA 12.8, whose build lacks Pascal
        ("7.0 Tesla V100", "580.65.06", "cu126", "2.13.0"),
        ("7.5 Tesla T4", "525.60.13", "cu126", "2.13.0"),
        ("8.9 NVIDIA GeForce RTX 4090", "550.54.14", "cu126", "2.13.0"),
        ("8.9 NVIDIA GeForce RTX 4090", "580.65.06", "cu130", "2.13.0"),
        (RTX_5060_TI, "580.65.06", "cu130", "2.13.0"),
        (RTX_5060_TI, "570.133.07", "cu128", "2.11.0"),  # CUDA 13 needs a newer driver, 12.6 has no code for it
        ("12.1 NVIDIA GB10", "580.95.05", "cu130", "2.13.0"),
        (H100, "535.129.03", "cu126", "2.13.0"),
        (H100, "580.65.06", "cu130", "2.13.0"),
        (H100, None, "cu126", "2.13.0"),  # nobody could tell the driver: the build that asks least of it
        (f"{H100};{H100}", "580.65.06", "cu130", "2.13.0"),
        (f"{GTX_1060};{H100}", "580.65.06", "cu126", "2.13.0"),
        (f"7.0 Tesla V100;{RTX_5060_TI}", "570.133.07", "cu128", "2.10.0"),  # the newest that has both
    ],
)
def test_the_build_for_a_set_of_gpus(gpus: str, driver: str | None, tag: str, version: str) -> None:
    variant = chosen(gpus, driver)
    assert isinstance(variant, Variant), variant
    assert (variant.tag, variant.version) == (tag, version)
    assert variant.cuda == (None if tag == "cpu" else f"{tag[2:-1]}.{tag[-1]}")


@pytest.mark.parametrize(
    ("gpus", "driver", "reason", "remedies"),
    [
        (
            f"{GTX_1060};{RTX_5060_TI}",
            "580.65.06",
            "no build of torch in the table has code for NVIDIA GeForce GTX 1060 6GB (6.1) and",
            [
                '(with CUDA 12.9): fdl libtorch build --archs "6.1;12.0"',
                f"use only {RTX_5060_TI[5:]} (12.0): fdl libtorch download --cuda 13.0 --version 2.13.0, {ONLY}=1",
                f"use only {GTX_1060[4:]} (6.1): fdl libtorch download --cuda 12.6 --version 2.13.0, {ONLY}=0",
                "fdl libtorch download --cpu",
            ],
        ),
        ("3.5 NVIDIA Tesla K40", "470.182.03", "no build of torch", ["fdl libtorch download --cpu"]),
        (H100, "470.182.03", "driver 470.182.03 is too old: cu126 of torch 2.13.0 needs 525.60.13", ["525.60.13", "--cpu"]),
        (RTX_5060_TI, "520.1", "driver 520.1 is too old: cu128 of torch 2.11.0", ["525.60.13", "--cpu"]),
        ("? GTX 1080 Ti", "470.182.03", "capability of GTX 1080 Ti is not known", ["update the driver", "FLODL_GPUS", "--cpu"]),
        ("gfx1100 Radeon RX 7900 XTX", None, "Radeon RX 7900 XTX (gfx1100): ROCm", ["fdl libtorch link", "--cpu"]),
    ],
)  # fmt: skip
def test_a_refusal_says_why_and_what_helps(gpus: str, driver: str, reason: str, remedies: list[str]) -> None:
    refusal = chosen(gpus, driver)
    assert isinstance(refusal, Refusal), refusal
    assert reason in refusal.reason
    assert len(refusal.remedies) == len(remedies)
    for remedy, said in zip(refusal.remedies, remedies, strict=True):
        assert said in remedy


def test_a_named_release() -> None:
    assert chosen(GTX_1060, "580.65.06", release="2.8").tag == "cu126"  # type: ignore[union-attr]
    assert chosen(RTX_5060_TI, "580.65.06", release="2.8.0").tag == "cu129"  # type: ignore[union-attr]
    refusal = chosen(RTX_5060_TI, "570.133.07", release="2.13")
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "driver 570.133.07 is too old: cu130 of torch 2.13.0 needs 580 or newer"
    with pytest.raises(CliError, match="torch 2.31 is not in the table of builds. Did you mean '2.13'"):
        chosen("", None, release="2.31")


def test_other_systems() -> None:
    assert chosen("", None, system="Darwin", machine="arm64").tag == "cpu"  # type: ignore[union-attr]
    refusal = chosen(H100, "580.65.06", machine="aarch64")
    assert isinstance(refusal, Refusal)
    assert "fdl libtorch link" in refusal.remedies[0]
    assert chosen(H100, "528.02", system="Windows").reason.startswith("driver 528.02 is too old")


@pytest.mark.parametrize(
    ("build", "device", "by"),
    [
        ("6.0", (6, 1), "6.0"),
        ("8.0 8.6", (8, 9), "8.6"),
        ("6.1", (6, 0), None),
        ("6.0", (7, 0), None),
        ("1.0", (10, 0), None),  # numbers, not text
        ("sm_120", (12, 1), "12.0"),
        ("sm_90a", (9, 0), "9.0a"),
        ("sm_90a", (9, 1), None),
        ("sm_100f", (10, 3), "10.0f"),
        ("9.0+PTX", (12, 0), "9.0+PTX"),
        ("sm_75 compute_80", (8, 6), "8.0+PTX"),
        ("sm_80 compute_80", (8, 6), "8.0"),
        ("9.0+PTX", (8, 6), None),
        ("", (8, 6), None),
    ],
)
def test_what_a_build_covers(build: str, device: tuple[int, int], by: str | None) -> None:
    found = covers(parse_list(build), device)
    assert (found and str(found)) == by


def test_lists_of_architectures() -> None:
    assert [str(a) for a in parse_list("6.1;12.0+PTX")] == ["6.1", "12.0", "12.0+PTX"]
    assert parse_list(["sm_61", "sm_61"]) == parse_list("6.1")
    with pytest.raises(CliError, match="'pascal' is no architecture"):
        parse_list("6.1;pascal")


def test_every_build_of_the_table_runs_on_what_it_was_made_for() -> None:
    assert {b.version for b in builds()} >= {"2.13.0", "2.8.0"}
    for build in builds():
        assert minimum_driver(build.cuda)
        for code in build.architectures:
            gpu = Gpu("x", 0, capability=code.capability)
            assert isinstance(choose([gpu], "590.1", system="Linux", machine="x86_64"), Variant)


def test_drivers_and_toolkits() -> None:
    assert [cuda_of_driver(v) for v in ("595.45.04", "581.15", "525.60.13", "440.33")] == ["13.1", "13.0", "12.0", None]
    assert toolkits_for([(6, 1), (12, 0)]) == ("12.9", "12.8")
    assert toolkits_for([(7, 5), (12, 1)]) == ("13.2", "13.0", "12.9")
    assert toolkits_for([(3, 5)]) == ()


def test_a_patch_release_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(CliError, match=r"torch 2.13.5 is not in the table of builds; 2.13.0 is"):
        choose((), None, release="2.13.5")
    assert not builds("2.13.5")
    assert builds("2.13") == builds("2.13.0")
