"""Confinement of programs: what a toolkit starts reaches only what its config names."""
