"""The verbs of the command line, one file each, and beside each its parser."""
