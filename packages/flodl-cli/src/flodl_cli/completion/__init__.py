"""Completion of commands, environments, options and values in bash, zsh and fish."""
