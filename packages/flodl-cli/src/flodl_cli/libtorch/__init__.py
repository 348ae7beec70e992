"""The libtorch manager: what is installed, where it comes from, and what it needs. Imports no torch."""
