"""The commands of `toolbus` that the SDK has; `toolbus.cli.own_commands` lists them."""
