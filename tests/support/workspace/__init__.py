"""Helps to test what happens to files."""
