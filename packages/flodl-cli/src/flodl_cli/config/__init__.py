"""Configuration whose every value knows where it came from."""
