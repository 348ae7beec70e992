"""Describe a model: the flow builder and the module that it builds."""

from flodl.graph.builder import FlowBuilder, flow
from flodl.graph.halting import LearnedHalt, ThresholdHalt
from flodl.graph.model import Graph
from flodl.graph.routing import ArgmaxSelector, FixedSelector, SigmoidRouter, SoftmaxRouter
from flodl.graph.state import StateAdd
from flodl.graph.traces import emit

__all__ = [
    "ArgmaxSelector",
    "FixedSelector",
    "FlowBuilder",
    "Graph",
    "LearnedHalt",
    "SigmoidRouter",
    "SoftmaxRouter",
    "StateAdd",
    "ThresholdHalt",
    "emit",
    "flow",
]
