"""Legs of the ready-made toolkits."""
