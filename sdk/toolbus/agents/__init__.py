"""Agents: toolkits that are built for one turn."""
