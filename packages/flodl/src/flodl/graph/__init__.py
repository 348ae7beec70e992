"""Describe a model: the flow builder and the module that it builds."""

from flodl.graph.builder import FlowBuilder, flow
from flodl.graph.model import Graph
from flodl.graph.state import StateAdd

__all__ = ["FlowBuilder", "Graph", "StateAdd", "flow"]
