"""The display of `toolbus watch`."""
