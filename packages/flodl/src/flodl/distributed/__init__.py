"""Several devices that train together: planning, averaging, launching, losing and joining ranks."""

from flodl.distributed.config import DdpConfig

__all__ = ["DdpConfig"]
