"""Both distributions, the changelog and the citation have one version, before anybody releases it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location("check_release", Path(__file__).parents[2] / "check_release.py")
assert _spec
assert _spec.loader
check_release = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check_release)


def test_there_is_one_version() -> None:
    assert check_release.check_versions(None) == check_release.version("flodl-cli")
