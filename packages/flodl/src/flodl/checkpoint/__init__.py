"""Saving and loading: complete or not there, read without running code, in the background of a training."""

from flodl.checkpoint.fit import LoadReport
from flodl.checkpoint.listing import best, newest
from flodl.checkpoint.load import Checkpoint, load
from flodl.checkpoint.manifest import Manifest, read_manifest, verify
from flodl.checkpoint.rng import rng_state, set_rng_state
from flodl.checkpoint.save import save
from flodl.checkpoint.series import Series, Written
from flodl.checkpoint.sharded import load_sharded, save_sharded

__all__ = [
    "Checkpoint",
    "LoadReport",
    "Manifest",
    "Series",
    "Written",
    "best",
    "load",
    "load_sharded",
    "newest",
    "read_manifest",
    "rng_state",
    "save",
    "save_sharded",
    "set_rng_state",
    "verify",
]
