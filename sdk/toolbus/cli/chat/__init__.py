"""The terminal chat of `toolbus chat`.

    session      asks, waits for the agent, interrupts: the main thread
    interrupts   what Ctrl-C and other signals do
    live_answer  what happens on the event loop, which runs on another thread, as events to read
    agents       what can be asked: an agent in a room, or one of this process
    transcript   what was asked and what came of it: results by number, the last question as a tree
    render       events as lines; pure
    screens      prints events: on a terminal, into pipes, as JSON
    commands     the table of commands such as /tools
    files        writes files of others, whose names are no paths
    line_input   the line editor and its history

The main thread reads lines and prints, so that Ctrl-C works at the prompt, and so that a slow
terminal stops neither the connection nor an agent of this process.
"""
