"""Which version this is: the wheel, `--version`, records and statements say it."""

__version__ = "0.1.0"
