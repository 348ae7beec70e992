"""The same process, inside a docker compose service."""

from __future__ import annotations

import os
from collections.abc import Sequence

__all__ = ["in_service"]

CONFIG_INSIDE = "/run/fdl-config.json"


def in_service(
    service: str, argv: Sequence[str], *, folder: str, names: Sequence[str], config_file: str = ""
) -> tuple[str, ...]:
    """The call of `docker compose` that runs `argv` word for word in `service`.

    The service's working folder is taken for the project's. `folder` is where to go from there; `names` are variables
    that the container gets, with the values that they have here.
    """
    passed = [word for name in names for word in ("-e", name)]
    if config_file:
        passed += ["-v", f"{config_file}:{CONFIG_INSIDE}:ro", "-e", f"FDL_CONFIG={CONFIG_INSIDE}"]
    if folder != os.curdir:
        argv = ("sh", "-c", 'cd -- "$0" && exec "$@"', folder, *argv)
    return ("docker", "compose", "run", "--rm", *passed, service, *argv)
