"""Traced processes, and a collector of spans that does not use our code."""
