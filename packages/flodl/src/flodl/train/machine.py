"""Settings of the whole process that a step's recipe asks for: threads, the route of matrix products, the allocator.

Each is put on while a trainer needs it and taken off after; what someone else has changed meanwhile is left alone.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch

from flodl.train.recipes import Recipe

__all__ = ["Allocator", "can_keep_memory", "cpus", "identity", "in_force", "onednn_is_exact"]


def cpus() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def identity() -> str:
    """This machine as far as speed goes: processor, how many of it, accelerator."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass  # no Linux
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}, {cpus()} CPUs{gpu}"


@contextmanager
def in_force(recipe: Recipe, *, lasting: bool = False) -> Iterator[None]:
    """Threads and route of matrix products as the recipe says, for the steps inside.

    lasting: foreign code runs inside, too. It may ask torch for the precision of products, which torch refuses to tell
    after the narrower switch that is used otherwise (and which, unlike the wider one, leaves compiled graphs valid).
    """
    threads = torch.get_num_threads()
    wanted = threads if recipe.threads is None else recipe.threads
    if wanted != threads:
        torch.set_num_threads(wanted)
    try:
        if recipe.onednn:
            with _onednn_by_precision() if lasting else _onednn():
                yield
        else:
            yield
    finally:
        if wanted != threads and torch.get_num_threads() == wanted:
            torch.set_num_threads(threads)


@contextmanager
def _onednn() -> Iterator[None]:
    """Float32 matrix products on the CPU by oneDNN: torch sends them there when it may use bfloat16, if it could."""
    place: tuple[str, str] = ("mkldnn", "matmul")
    before = torch._C._get_fp32_precision_getter(*place)
    torch._C._set_fp32_precision_setter(*place, "bf16")
    try:
        yield
    finally:
        if torch._C._get_fp32_precision_getter(*place) == "bf16":
            torch._C._set_fp32_precision_setter(*place, before)


@contextmanager
def _onednn_by_precision() -> Iterator[None]:
    before, narrow = torch.get_float32_matmul_precision(), torch._C._get_fp32_precision_getter("mkldnn", "matmul")
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        if torch.get_float32_matmul_precision() == "medium":
            torch.set_float32_matmul_precision(before)
            torch._C._set_fp32_precision_setter(
                "mkldnn", "matmul", narrow
            )  # "none", which the wider switch does not bring back


@functools.cache
def onednn_is_exact() -> bool:
    """Whether this machine's oneDNN computes float32 products in float32: several are checked against float64.

    False also where torch has no such switch (before 2.9), or no oneDNN.
    """
    if not hasattr(torch._C, "_set_fp32_precision_setter"):
        return False
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad(), _onednn():
        for rows, inner, columns in ((16, 64, 48), (256, 256, 256), (130, 512, 300), (64, 1000, 1)):
            a = torch.randn(rows, inner, generator=generator)
            b = torch.randn(inner, columns, generator=generator)
            exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
            products = (
                a @ b,
                a @ b.T.contiguous().T,
                (a.T.contiguous().T) @ b,
                torch.addmm(torch.zeros(columns), a, b),
            )
            if any(
                ((p - exact).abs() / size).max() > 2e-6 for p in products
            ):  # bfloat16: 1e-3; a float's rounding: 6e-8
                return False
    return True


# -- the allocator of the C library

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # malloc.h
_MEGABYTE = 1 << 20


@functools.cache
def _mallopt() -> ctypes._NamedFuncPointer | None:
    """glibc's; None where the C library is another one."""
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return None
    function = getattr(ctypes.CDLL(None), "mallopt", None)
    if function is not None:
        function.argtypes, function.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    return function


def can_keep_memory() -> bool:
    """Whether the recipe's `allocator` does anything here: glibc, and not replaced by the user's own settings."""
    chosen = any(name.startswith("MALLOC_") or name == "LD_PRELOAD" for name in os.environ)
    return _mallopt() is not None and not chosen


class Allocator:
    """Keeps freed memory in the process while someone holds it, so that each step need not fault it in again."""

    _holders: ClassVar[set[int]] = set()

    @classmethod
    def hold(cls, holder: object) -> None:
        """For all of the process: no blocks of their own for large tensors, nothing given back to the system."""
        mallopt = _mallopt()
        if mallopt is None or id(holder) in cls._holders:
            return
        cls._holders.add(id(holder))
        if len(cls._holders) == 1:
            mallopt(_MMAP_MAX, 0)
            mallopt(_TRIM_THRESHOLD, 2047 * _MEGABYTE)

    @classmethod
    def release(cls, holder: object) -> None:
        """Where glibc's own rule ends up once a program frees large blocks; what is free goes back to the system."""
        mallopt = _mallopt()
        if mallopt is None or id(holder) not in cls._holders:
            return
        cls._holders.discard(id(holder))
        if not cls._holders:
            mallopt(_MMAP_MAX, 65536)
            mallopt(_MMAP_THRESHOLD, 32 * _MEGABYTE)
            mallopt(_TRIM_THRESHOLD, 64 * _MEGABYTE)
            ctypes.CDLL(None).malloc_trim(0)
