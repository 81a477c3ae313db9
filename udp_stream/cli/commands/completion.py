"""`completion`: the verbs and options as a shell completes them, made by shtab from the parsers themselves."""

from __future__ import annotations

import argparse

import shtab

from udp_stream.cli.options import verbs_of

_FILES = ("FILE", "TOML", "SOURCE")
_FOLDERS = ("FOLDER", "DIR")


def completion(arguments: argparse.Namespace) -> None:
    """Print the script; nothing is installed."""
    parser: argparse.ArgumentParser = arguments.program
    _complete_names(parser)
    print(shtab.complete(parser, shell=arguments.shell))


def _complete_names(parser: argparse.ArgumentParser) -> None:
    """Say of each option whether it takes a file or a folder: by its name in the help."""
    for action in parser._actions:
        if action.metavar in _FILES:
            vars(action)["complete"] = shtab.FILE
        elif action.metavar in _FOLDERS:
            vars(action)["complete"] = shtab.DIRECTORY
    for below in verbs_of(parser).values():
        _complete_names(below)
