"""The same numbers on every run of the same program on the same machine."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["Deterministic"]


class Deterministic:
    """Torch's deterministic algorithms between `enter` and `leave`; an operation that has none raises torch's error.

    On CUDA torch also wants CUBLAS_WORKSPACE_CONFIG in the environment, and says so itself.
    """

    def __init__(self) -> None:
        self._before: tuple[Any, ...] | None = None

    def enter(self) -> None:
        """Process-wide, from now on."""
        if self._before is None:
            cudnn = torch.backends.cudnn
            self._before = (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
                cudnn.benchmark,
                cudnn.deterministic,
            )
            torch.use_deterministic_algorithms(True)
            cudnn.benchmark, cudnn.deterministic = False, True

    def leave(self) -> None:
        """As it was before; again does nothing."""
        if self._before is not None:
            on, warn_only, benchmark, deterministic = self._before
            torch.use_deterministic_algorithms(on, warn_only=warn_only)
            torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = benchmark, deterministic
            self._before = None
