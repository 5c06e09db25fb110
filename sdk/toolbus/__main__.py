"""`python -m toolbus` is `toolbus`."""

from toolbus.command_line import main

if __name__ == "__main__":
    main()
