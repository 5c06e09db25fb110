"""The commands of `toolbus`; they join it through the entry point group `toolbus.commands`."""
