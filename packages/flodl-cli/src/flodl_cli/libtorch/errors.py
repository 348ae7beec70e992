"""What can go wrong while a libtorch is fetched and installed: the job failed, exit code 1."""

from __future__ import annotations

from flodl_cli.errors import CliError

__all__ = ["ArchiveError", "BuildError", "DownloadError", "HashError", "LibtorchError", "MachineError", "ResolveError"]


class LibtorchError(CliError):
    """The call was right, the job failed."""

    exit_code = 1


class ResolveError(LibtorchError):
    """pip finds no wheel that fits."""


class DownloadError(LibtorchError):
    """A server refused, broke off, or is not reached."""


class HashError(LibtorchError):
    """What arrived is not what the index describes."""


class ArchiveError(LibtorchError):
    """An archive is damaged, or would write where it has no business."""


class MachineError(LibtorchError):
    """Libraries for another machine."""


class BuildError(LibtorchError):
    """A step of a build from source failed."""
