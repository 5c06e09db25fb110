"""The command line `toolbus`."""
