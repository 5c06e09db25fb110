"""A room as a participant sees it: calls, events, participants, registrations."""
