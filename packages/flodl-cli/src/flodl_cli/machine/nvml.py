"""Prints what NVML says as JSON; its own process, because a driver in a bad state can hang or crash whoever asks it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["report"]


def report() -> dict[str, Any]:
    """`{driver, cuda, gpus}`, or `{error}` where there is no driver to ask."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"error": str(error)}
    try:
        count = pynvml.nvmlDeviceGetCount()
        return {
            "driver": _asked(pynvml.nvmlSystemGetDriverVersion),
            "cuda": _asked(pynvml.nvmlSystemGetCudaDriverVersion_v2),
            "gpus": [_device(index) for index in range(count)],
        }
    except pynvml.NVMLError as error:
        return {"error": str(error)}
    finally:
        pynvml.nvmlShutdown()


def _device(index: int) -> dict[str, Any]:
    """One GPU; `{index, error}` for one that does not answer (fallen off the bus, no permission)."""
    import pynvml

    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        mig = _asked(lambda: pynvml.nvmlDeviceGetMigMode(handle)[0])
        return {
            "index": index,
            "name": _asked(lambda: pynvml.nvmlDeviceGetName(handle)),
            "capability": _asked(lambda: list(pynvml.nvmlDeviceGetCudaComputeCapability(handle))),
            "memory": _asked(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).total),
            "mig": mig == 1,
        }
    except pynvml.NVMLError as error:
        return {"index": index, "error": str(error)}


def _asked(question: Callable[[], Any]) -> Any:
    """The answer, None where this GPU or driver has none."""
    import pynvml

    try:
        answer = question()
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NoPermission):
        return None
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer


if __name__ == "__main__":
    json.dump(report(), sys.stdout)
