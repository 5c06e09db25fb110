"""Hosts toolkits as the service of a process."""
