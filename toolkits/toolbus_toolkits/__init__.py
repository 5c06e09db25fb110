"""Ready-made toolkits, which use only the public API, and are examples for writing your own.

`toolbus_toolkits.clock` returns the time and is the smallest example, `toolbus_toolkits.sql` runs
read-only SQL on one SQLite file, `toolbus_toolkits.inventory` builds such a file to try it with.
Importing any of them reads nothing and opens nothing; the factories do.
"""
