"""Traced processes, and a collector of spans that is not ours."""
