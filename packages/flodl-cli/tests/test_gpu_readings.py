"""What drivers, kernels and tools say about GPUs, as recorded; and how a machine is asked."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from flodl_cli.errors import CliError
from flodl_cli.machine.gpus import detect
from flodl_cli.machine.readings import (
    SMI_FIELDS_OLD,
    Gpu,
    Reading,
    parse_kfd,
    parse_nvml,
    parse_override,
    parse_proc_version,
    parse_smi,
)

Write = Callable[..., Path]

TWO_GPUS = """\
0, NVIDIA GeForce GTX 1060 6GB, 6.1, 6144, 570.133.07
1, NVIDIA GeForce RTX 5060 Ti, 12.0, 16311, 570.133.07
"""
A_LAPTOP = "0, NVIDIA GeForce RTX 3050 Ti Laptop GPU, 8.6, 4096, 535.183.01\n"
NOT_AVAILABLE = "0, NVIDIA GB10, 12.1, [N/A], 580.95.05\n1, [N/A], [N/A], [Insufficient Permissions], [N/A]\n"
MIG = "0, NVIDIA A100-SXM4-40GB MIG 1g.5gb, 8.0, [N/A], 535.129.03\n1, NVIDIA H100 80GB HBM3, 9.0, 81559, 535.129.03\n"
OLD = "0, NVIDIA GeForce GTX 1080 Ti, 11178, 470.182.03\n"
FIELD_UNKNOWN = 'Field "compute_cap" is not a valid field to query.\n'
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n"

PROC_CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n"
    "GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)\n"
)
PROC_OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@U22-I3)\n"
    "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n"
)

KFD_CPU = "cpu_cores_count 32\nsimd_count 0\nmem_banks_count 1\ngfx_target_version 0\nvendor_id 0\n"
KFD_7900 = (
    "cpu_cores_count 0\nsimd_count 192\nmem_banks_count 1\ngfx_target_version 110000\nvendor_id 4098\ndevice_id 29772\n"
)
KFD_MI250 = "cpu_cores_count 0\nsimd_count 416\ngfx_target_version 90010\nvendor_id 4098\nhive_id 9223372036854775808\n"
KFD_MI300 = "simd_count 1216\ngfx_target_version 90402\nvendor_id 4098\n"
KFD_VRAM = "heap_type 1\nsize_in_bytes 25753026560\nflags 0\nwidth 384\nmem_clk_max 1249\n"

NVML_TWO = {
    "driver": "580.65.06",
    "cuda": 13000,
    "gpus": [
        {"index": 0, "name": "NVIDIA GeForce GTX 1060 6GB", "capability": [6, 1], "memory": 6442450944, "mig": False},
        {"index": 1, "name": "NVIDIA H100 80GB HBM3", "capability": [9, 0], "memory": 85520809984, "mig": True},
    ],
}


def shown(reading: Reading) -> list[tuple[object, ...]]:
    return [(g.number, g.name, g.capability, g.memory_mib) for g in reading.gpus]


@pytest.mark.parametrize(
    ("text", "gpus", "driver"),
    [
        (
            TWO_GPUS,
            [(0, "NVIDIA GeForce GTX 1060 6GB", (6, 1), 6144), (1, "NVIDIA GeForce RTX 5060 Ti", (12, 0), 16311)],
            "570.133.07",
        ),
        (A_LAPTOP, [(0, "NVIDIA GeForce RTX 3050 Ti Laptop GPU", (8, 6), 4096)], "535.183.01"),
        (NOT_AVAILABLE, [(0, "NVIDIA GB10", (12, 1), None), (1, "NVIDIA GPU", None, None)], "580.95.05"),
        (
            MIG,
            [(0, "NVIDIA A100-SXM4-40GB MIG 1g.5gb", (8, 0), None), (1, "NVIDIA H100 80GB HBM3", (9, 0), 81559)],
            "535.129.03",
        ),
        ("3, Quadro, the second, 7.5, 16384 MiB, 535.1\n", [(3, "Quadro, the second", (7, 5), 16384)], "535.1"),
        ("", [], None),
    ],
    ids=["two different", "laptop", "not available", "mig", "comma in the name", "nothing"],
)
def test_rows_of_nvidia_smi(text: str, gpus: list[object], driver: str | None) -> None:
    reading = parse_smi(text)
    assert (shown(reading), reading.driver, reading.notes) == (gpus, driver, ())


def test_rows_of_an_old_nvidia_smi_lack_the_capability() -> None:
    reading = parse_smi(OLD, SMI_FIELDS_OLD)
    assert shown(reading) == [(0, "NVIDIA GeForce GTX 1080 Ti", None, 11178)]
    assert reading.driver == "470.182.03"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (NO_DRIVER, "modprobe nvidia"),
        (MISMATCH, "restart the machine"),
        ("No devices were found\n", "nvidia-smi: No devices were found"),
        ("Unable to determine the device handle for GPU 0000:01:00.0: GPU is lost.\n", "fallen off the bus"),
    ],
)
def test_complaints_of_nvidia_smi_become_notes_with_a_remedy(text: str, said: str) -> None:
    reading = parse_smi(text)
    assert reading.gpus == ()
    assert said in " ".join(reading.notes)


@pytest.mark.parametrize(
    ("text", "version"), [(PROC_CLOSED, "535.183.01"), (PROC_OPEN, "580.65.06"), ("", None), ("nonsense", None)]
)
def test_the_version_of_the_kernel_module(text: str, version: str | None) -> None:
    assert parse_proc_version(text) == version


def test_nvml_two_gpus_one_split_into_instances() -> None:
    reading = parse_nvml(json.dumps(NVML_TWO))
    assert [(g.title, g.memory_mib, g.mig) for g in reading.gpus] == [
        ("NVIDIA GeForce GTX 1060 6GB (6.1)", 6144, False),
        ("NVIDIA H100 80GB HBM3 (9.0)", 81559, True),
    ]
    assert (reading.driver, reading.cuda) == ("580.65.06", "13.0")


def test_nvml_a_lost_gpu_hides_no_other() -> None:
    said = {**NVML_TWO, "cuda": None, "gpus": [{"index": 0, "error": "GPU is lost"}, NVML_TWO["gpus"][1]]}  # type: ignore[index]
    reading = parse_nvml(json.dumps(said))
    assert [g.number for g in reading.gpus] == [1]
    assert reading.cuda is None
    assert "GPU 0 does not answer: GPU is lost (it has fallen off the bus" in reading.notes[0]


def test_nvml_no_library_is_no_news_but_another_error_is() -> None:
    assert parse_nvml('{"error": "NVML Shared Library Not Found"}') == Reading()
    assert "restart" in parse_nvml('{"error": "Driver/library version mismatch"}').notes[0]
    assert "could not be read" in parse_nvml("no json").notes[0]


def test_the_kernels_topology_of_amd_gpus() -> None:
    nodes = [(10, KFD_MI300, []), (0, KFD_CPU, []), (2, KFD_MI250, []), (1, KFD_7900, [KFD_VRAM])]
    gpus = parse_kfd(nodes).gpus
    assert [(g.number, g.target, g.memory_mib, g.vendor) for g in gpus] == [
        (0, "gfx1100", 24560, "amd"),
        (1, "gfx90a", None, "amd"),
        (2, "gfx942", None, "amd"),
    ]


def test_the_override() -> None:
    reading = parse_override("6.1 NVIDIA GeForce GTX 1060;  gfx1100 Radeon ;? Some old card;8.6", " 570.1 ")
    assert [g.title for g in reading.gpus] == [
        "NVIDIA GeForce GTX 1060 (6.1)",
        "Radeon (gfx1100)",
        "Some old card (capability unknown)",
        "GPU 3 (8.6)",
    ]
    assert reading.driver == "570.1"
    assert parse_override("") == parse_override("none") == Reading()
    with pytest.raises(CliError, match="FLODL_GPUS: 'RTX 3090' must be a capability and a name"):
        parse_override("RTX 3090")


def no_nvml(_: object) -> Reading:
    return Reading()


@pytest.fixture
def machine(tmp_path: Path, write: Write) -> Callable[..., dict[str, str]]:
    """A machine of files: `machine("script of nvidia-smi")` gives the environment in which it is on PATH."""

    def make(smi: str = "", **files: str) -> dict[str, str]:
        if smi:
            write("bin/nvidia-smi", f"#!/bin/sh\n{smi}").chmod(0o755)
        for name, text in files.items():
            write(name, text)
        return {"PATH": f"{tmp_path / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin"}

    return make


def test_nvml_goes_before_nvidia_smi(machine: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    env = machine("touch asked; exit 1")
    found = detect(env, root=tmp_path, nvml=lambda _: parse_nvml(json.dumps(NVML_TWO)))
    assert (found.source, len(found.gpus), found.cuda) == ("NVML", 2, "13.0")
    assert not Path("asked").exists()


def test_the_real_nvml_is_asked_in_a_process_of_its_own(tmp_path: Path) -> None:
    found = detect({**os.environ, "PATH": ""}, root=tmp_path)
    assert found.source in ("NVML", "nothing found")
    assert found.notes == ()


def test_a_driver_that_hangs_or_fails_under_nvml_is_told(tmp_path: Path) -> None:
    env = {**os.environ, "PATH": "", "PYTHONPATH": str(tmp_path)}
    package = tmp_path / "pynvml.py"
    package.write_text("import time\ntime.sleep(60)\n")
    assert "NVML did not answer within 0.5 s" in detect(env, root=tmp_path, timeout_s=0.5).notes[0]
    package.write_text("import os\nos.abort()\n")
    assert "NVML could not be asked" in detect(env, root=tmp_path).notes[0]


def test_an_empty_cuda_visible_devices_hides_no_gpu(machine: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    env = {**machine(f"cat <<E\n{TWO_GPUS}E"), "CUDA_VISIBLE_DEVICES": ""}
    found = detect(env, root=tmp_path, nvml=no_nvml)
    assert [g.capability for g in found.gpus] == [(6, 1), (12, 0)]
    assert (found.driver, found.cuda, found.source) == ("570.133.07", "12.8", "nvidia-smi")


def test_an_old_driver_is_asked_again_without_the_capability(
    machine: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    env = machine(f"case $1 in *compute_cap*) echo '{FIELD_UNKNOWN.strip()}'; exit 2;; *) echo '{OLD.strip()}';; esac")
    found = detect(env, root=tmp_path, nvml=no_nvml)
    assert found.gpus == (Gpu("NVIDIA GeForce GTX 1080 Ti", 0, memory_mib=11178),)
    assert (found.driver, found.cuda, found.notes) == ("470.182.03", "11.4", ())


def test_the_kernel_module_tells_the_driver_before_nvidia_smi(
    machine: Callable[..., dict[str, str]], tmp_path: Path, write: Write
) -> None:
    env = machine("echo '0, NVIDIA H100, 9.0, 81559, [N/A]'")
    write("proc/driver/nvidia/version", PROC_OPEN)
    assert detect(env, root=tmp_path, nvml=no_nvml).driver == "580.65.06"
    write("sys/module/nvidia/version", "535.183.01\n")
    assert detect(env, root=tmp_path, nvml=no_nvml).driver == "535.183.01"


def test_wsl2_has_no_files_and_its_nvidia_smi_is_not_on_path(tmp_path: Path, write: Write) -> None:
    write("usr/lib/wsl/lib/nvidia-smi", f"#!/bin/sh\necho '{A_LAPTOP.strip()}'\n").chmod(0o755)
    found = detect({"PATH": ""}, root=tmp_path, nvml=no_nvml)
    assert (found.driver, found.source, len(found.gpus)) == ("535.183.01", "nvidia-smi", 1)


def test_a_hanging_nvidia_smi_is_ended_with_its_children(
    machine: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    env = machine("sleep 61 &\necho $! > child\nwait")
    found = detect(env, root=tmp_path, nvml=no_nvml, timeout_s=0.5)
    assert (found.gpus, found.source) == ((), "nothing found")
    assert "nvidia-smi did not answer within 0.5 s" in found.notes[0]
    child = int(Path("child").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (f'cat <<"E"\n{NO_DRIVER}E\nexit 9', "modprobe nvidia"),
        ("echo No devices were found; exit 6", "No devices were found"),
        ("exit 255", "failed with status 255"),
        ("kill -SEGV $$", "failed with status -11"),
    ],
)
def test_a_failing_nvidia_smi_is_told(
    machine: Callable[..., dict[str, str]], tmp_path: Path, script: str, said: str
) -> None:
    found = detect(machine(script), root=tmp_path, nvml=no_nvml)
    assert found.gpus == ()
    assert said in " ".join(found.notes)


def test_amd_is_found_in_the_kernels_topology(tmp_path: Path, write: Write) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    write(f"{nodes}/0/properties", KFD_CPU)
    write(f"{nodes}/1/properties", KFD_7900)
    write(f"{nodes}/1/mem_banks/0/properties", KFD_VRAM)
    found = detect({"PATH": ""}, root=tmp_path, nvml=no_nvml)
    assert found.gpus == (Gpu("AMD GPU gfx1100", 0, "amd", target="gfx1100", memory_mib=24560),)
    assert (found.driver, found.cuda, found.source) == (None, None, "KFD")


def test_a_machine_without_gpus(tmp_path: Path) -> None:
    found = detect({"PATH": ""}, root=tmp_path, nvml=no_nvml)
    assert found == ((), None, None, "nothing found", ())


def test_the_override_goes_before_everything(machine: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    env = {**machine("touch asked"), "FLODL_GPUS": "12.0 RTX 5060 Ti", "FLODL_GPU_DRIVER": "580.65.06"}
    found = detect(env, root=tmp_path)
    assert (found.gpus, found.driver, found.cuda) == (
        (Gpu("RTX 5060 Ti", 0, capability=(12, 0)),),
        "580.65.06",
        "13.0",
    )
    assert detect({**env, "FLODL_GPUS": ""}, root=tmp_path).gpus == ()
    assert not Path("asked").exists()
