"""Rivals: legs that run in virtual environments of their own, and the making of these."""
