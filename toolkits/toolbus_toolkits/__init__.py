"""Ready-made toolkits: ordinary users of `toolbus`, and examples of how to write one's own.

`toolbus_toolkits.clock` tells the time and is the smallest example, `toolbus_toolkits.sql` answers
read-only SQL over one SQLite file, `toolbus_toolkits.inventory` builds such a file to try it on.
Importing any of them reads nothing and opens nothing; the factories do.
"""
