"""The commands of `toolbus`, registered in the entry point group `toolbus.commands`."""
