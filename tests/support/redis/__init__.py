"""Redis for tests: servers, containers, relays in front of one, the matrix of kinds."""
