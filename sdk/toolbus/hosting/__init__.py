"""The host's side of a connection: runs the calls of hosted toolkits."""
