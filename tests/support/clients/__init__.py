"""Clients and servers made by hand: raw sockets, raw frames, forged tokens, a browser."""
