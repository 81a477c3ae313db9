"""The verbs of the command line, each in a file, and beside each its parser."""
