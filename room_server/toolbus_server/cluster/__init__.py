"""Several nodes that serve one bus, connected by Redis."""
