"""Calls that wait for a person: as questions and rows, and as a live table."""
