"""Rooms of a running server: waits for events and participants, and what a server still holds."""
