"""Run by another Python: what its torch is, as JSON. With the word `train` it also uses it, on every device there is.

Only the standard library and torch, which is imported by name at run time.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import sysconfig
from typing import Any


def report(train: bool) -> dict[str, Any]:
    """`version` is None where there is no torch, `error` is set where there is one that cannot be used."""
    found: dict[str, Any] = {"python": sys.executable, "python_version": sys.version.split()[0], "prefix": sys.prefix}
    found["pip"] = importlib.util.find_spec("pip") is not None
    found["managed"] = os.path.exists(os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED"))
    found["managed"] = found["managed"] and sys.prefix == sys.base_prefix
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return {**found, "version": None}
    found["folder"] = spec.origin.rpartition("/")[0]
    try:
        found["version"] = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        found["version"] = "unknown"
    try:
        torch: Any = importlib.import_module("torch")
        found.update(described(torch))
        if train:
            found["trained"] = [trained(torch, device) for device in found["devices"]]
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        found["error"] = f"{type(error).__name__}: {lines[0]}"
    return found


def described(torch: Any) -> dict[str, Any]:
    flags = torch._C._cuda_getArchFlags() if torch.version.cuda or torch.version.hip else ""
    available = torch.cuda.is_available()
    metal = hasattr(torch.backends, "mps") and torch.backends.mps.is_available()
    devices = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if available else []
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "architectures": (flags or "").split(),
        "available": available,
        "devices": [*devices, *(["mps"] if metal else []), "cpu"],
    }


def trained(torch: Any, device: str) -> dict[str, Any]:
    """A matrix product and one training step; both are checked against what they must give."""
    try:
        torch.manual_seed(0)
        a, b = torch.randn(64, 96), torch.randn(96, 32)
        product = (a.to(device) @ b.to(device)).cpu()
        torch.testing.assert_close(product, a @ b, rtol=1e-2, atol=1e-2)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = torch.randn(32, 8, device=device), torch.randint(0, 3, (32,)).to(device)
        losses = []
        for _ in range(2):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if not losses[1] < losses[0]:
            raise RuntimeError(f"a training step made the loss worse: {losses}")
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return {"device": device, "error": f"{type(error).__name__}: {lines[0]}"}
    return {"device": device, "error": None}


if __name__ == "__main__":
    print("\n" + json.dumps(report("train" in sys.argv[1:])))
