"""Hand-written clients and servers: raw sockets, raw frames, forged tokens, a browser."""
