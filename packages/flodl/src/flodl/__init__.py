"""floDl: describe a model as a flow, train it with the loop you know, watch it live."""

__version__ = "0.1.0"
