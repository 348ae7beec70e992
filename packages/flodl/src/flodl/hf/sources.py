"""Where models come from: a folder, the cache, and only then the network."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from flodl.errors import CheckpointError, ConfigError

__all__ = ["needed", "pretrained"]


def needed(package: str) -> Any:
    """The package, imported now. Raises ConfigError with the remedy where it is not installed."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package.partition(".")[0]:
            raise
        raise ConfigError(f"flodl.hf needs {error.name}, which is not installed: pip install 'flodl[hf]'") from error


def pretrained(factory: Any, source: str | os.PathLike[str], **options: Any) -> Any:
    """`factory.from_pretrained`, from a folder or the cache; from the network only what is not cached.

    Raises CheckpointError, with the remedy, where it is neither here nor reachable.
    """
    source = os.fspath(source)
    try:
        return factory.from_pretrained(source, **{**options, "local_files_only": True})
    except OSError as error:
        if Path(source).is_dir():
            raise CheckpointError(f"{factory.__name__} cannot be read from the folder {source}: {error}") from error
    hub, http = needed("huggingface_hub"), needed("httpx")
    offline = hub.constants.HF_HUB_OFFLINE or options.get("local_files_only")
    why: Exception | str = "HF_HUB_OFFLINE is set" if hub.constants.HF_HUB_OFFLINE else "local_files_only is set"
    if not offline:
        try:
            return factory.from_pretrained(source, **options)
        except (OSError, http.HTTPError, hub.errors.HfHubHTTPError) as error:
            why = error
    raise CheckpointError(
        f"{source!r} is no folder here, is not in the cache ({hub.constants.HF_HUB_CACHE}) and cannot be reached: "
        f"{str(why).splitlines()[0]}. With a network, `hf download {source}` fills the cache (HF_HOME moves it); without "
        "one, copy the model's folder here and give its path."
    )
