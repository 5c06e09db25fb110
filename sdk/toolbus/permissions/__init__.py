"""Which calls may run: rules, modes, and what a tool says about one input. Pure, but for files."""
