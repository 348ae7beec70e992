"""The commands of a manifest: run, path and preset."""
