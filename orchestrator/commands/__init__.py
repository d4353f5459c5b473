"""One module per command, all with the same structure: a function named after the command returns an answer.

An answer is a generator: it yields what to print, line by line, and returns the exit code. Nothing here prints except
``printing.show``, the live view and a progress bar; nothing here knows the command line.
"""
