"""Access control for connections: tokens, revocations, quotas, rate limits."""
