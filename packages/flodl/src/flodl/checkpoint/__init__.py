"""Saving and loading: one file, written atomically, read without running code."""

from flodl.checkpoint.fit import LoadReport
from flodl.checkpoint.load import Checkpoint, load
from flodl.checkpoint.rng import rng_state, set_rng_state
from flodl.checkpoint.save import save

__all__ = ["Checkpoint", "LoadReport", "load", "rng_state", "save", "set_rng_state"]
