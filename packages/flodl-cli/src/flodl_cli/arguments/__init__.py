"""What the entry of a manifest takes as arguments: asked of its own parser, cached, checked before it starts."""
