"""Watching a training: the recorder writes a run store, any process reads it; lines on the terminal."""

from flodl.monitor.control import Request, request
from flodl.monitor.exports import export_csv, export_tensorboard, write_log
from flodl.monitor.format import format_duration, format_value
from flodl.monitor.recorder import Recorder
from flodl.monitor.report import HtmlReport, save_html
from flodl.monitor.resources import GpuSample, ResourceSample, ResourceSampler
from flodl.monitor.rows import (
    AuditRow,
    Counts,
    EpochRow,
    EventRow,
    PointRow,
    ResourceRow,
    RunInfo,
    RunState,
    Setting,
)
from flodl.monitor.serve import Dashboard, serve
from flodl.monitor.store import ListedRun, RunView, list_runs
from flodl.monitor.terminal import Terminal

__all__ = [
    "AuditRow",
    "Counts",
    "Dashboard",
    "EpochRow",
    "EventRow",
    "GpuSample",
    "HtmlReport",
    "ListedRun",
    "PointRow",
    "Recorder",
    "Request",
    "ResourceRow",
    "ResourceSample",
    "ResourceSampler",
    "RunInfo",
    "RunState",
    "RunView",
    "Setting",
    "Terminal",
    "export_csv",
    "export_tensorboard",
    "format_duration",
    "format_value",
    "list_runs",
    "request",
    "save_html",
    "serve",
    "write_log",
]
