"""Several devices that train together: planning, averaging, launching, losing and joining ranks."""

from flodl.distributed.averaging import Averager
from flodl.distributed.config import DdpConfig
from flodl.distributed.devices import device_of_rank, kind_of, parse_devices
from flodl.distributed.environment import inside_a_rank
from flodl.distributed.equality import check_equal
from flodl.distributed.flat import FlatState
from flodl.distributed.gradients import GradientMean
from flodl.distributed.group import Group, RankLost
from flodl.distributed.launch import launch_siblings
from flodl.distributed.manual import Ddp
from flodl.distributed.outer import OuterStep
from flodl.distributed.planner import Planner, Report, Share, Window
from flodl.distributed.rows import Row
from flodl.distributed.simulate import Prediction, simulate
from flodl.distributed.slowed import Slowed
from flodl.distributed.split import Split
from flodl.distributed.stream import Range, Stream, chop, parted

__all__ = [
    "Averager",
    "Ddp",
    "DdpConfig",
    "FlatState",
    "GradientMean",
    "Group",
    "OuterStep",
    "Planner",
    "Prediction",
    "Range",
    "RankLost",
    "Report",
    "Row",
    "Share",
    "Slowed",
    "Split",
    "Stream",
    "Window",
    "check_equal",
    "chop",
    "device_of_rank",
    "inside_a_rank",
    "kind_of",
    "launch_siblings",
    "parse_devices",
    "parted",
    "simulate",
]
