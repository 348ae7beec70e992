"""Sampling: real figures of this process and machine."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from flodl.monitor import ResourceSampler
from flodl.monitor.resources import _is_visible, _memory_limit, _MemoryLimit


@pytest.fixture
def sampler() -> ResourceSampler:
    return ResourceSampler()


def test_a_sample_is_of_this_process_and_machine(sampler: ResourceSampler) -> None:
    before = sampler.sample()
    ballast = bytearray(b"\1" * 50_000_000)
    after = sampler.sample()
    assert after.rss_bytes - before.rss_bytes > 30_000_000
    assert len(ballast) < after.ram_used_bytes < after.ram_total_bytes <= psutil.virtual_memory().total
    assert after.cpu_percent >= 0.0
    assert after.machine_cpu_percent >= 0.0
    assert all(gpu.vram_total_bytes > 0 for gpu in after.gpus)
    sampler.close()
    assert sampler.gpus() == ()
    sampler.close()


def test_file_cache_of_a_container_counts_as_free(tmp_path: Path) -> None:
    (tmp_path / "memory.current").write_text("5000\n")
    (tmp_path / "memory.stat").write_text("anon 100\ninactive_file 2000\nactive_file 7\n")
    limit = _MemoryLimit(folder=tmp_path, limit_bytes=10_000, usage_file="memory.current")
    assert limit.used_bytes() == 3000


def test_the_limit_of_this_machine_is_no_error(sampler: ResourceSampler) -> None:
    limit = _memory_limit()
    used, total = sampler.ram()
    assert total == min(psutil.virtual_memory().total, limit.limit_bytes if limit else total)
    assert 0 < used <= total
    sampler.close()


@pytest.mark.parametrize(
    ("visible", "seen"),
    [(None, [0, 1]), ("", []), ("1", [1]), ("1,0", [0, 1]), ("GPU-aa", [0]), ("GPU-bb11,0", [0, 1]), ("-1", [])],
)
def test_only_visible_gpus_are_sampled(visible: str | None, seen: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if visible is None:
            patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            patch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert [gpu for gpu, uuid in enumerate(["GPU-aa00", "GPU-bb11"]) if _is_visible(gpu, uuid)] == seen
