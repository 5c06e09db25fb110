"""The processes of the legs: `python -m bench.programs.NAME ROLE`."""
