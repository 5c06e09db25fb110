"""Rooms of a running server: waits for events, participants, what a server still holds."""
