"""The identity and rights of a participant: grants, keys, and signed tokens."""
