"""A storm: calls of every kind while processes and connections fail, and its verdict."""
