"""One module a command, all of one shape: a function of the command's name takes the arguments and gives an answer.

An answer is a generator: it yields what to print, line by line, and returns the exit code. Nothing here prints but
``printing.show``, the live view, and a bar of progress; nothing here knows the command line.
"""
