"""What users read when something failed: exit codes, checks, errors of joining a room."""
