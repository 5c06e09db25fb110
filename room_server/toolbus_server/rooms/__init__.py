"""The rooms of a server: requests about them, and their events."""
