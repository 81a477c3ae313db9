"""`config show`: every key with its origin. `config check`: all faults at once."""

from __future__ import annotations

import argparse
import json

from udp_stream.adapters.settings import Fault, Settings, faults_in, load_with_origins
from udp_stream.cli.key_files import file_faults
from udp_stream.cli.shown_config import ShownKey, as_toml, shown_keys
from udp_stream.errors import ConfigError


def show(arguments: argparse.Namespace) -> None:
    """Print the configuration as it is in force; ConfigError if it is invalid: `check` says all of why."""
    settings, origins = load_with_origins(arguments.config, arguments.set)
    keys, policy = shown_keys(settings, origins), settings.policy.fingerprint()
    if arguments.json:
        print(json.dumps({"policy": policy, "keys": {key.name: _of_key(key) for key in keys}}, indent=2))
    else:
        print(f"# policy {policy}: records made under these settings name it")
        print(as_toml(keys))


def _of_key(key: ShownKey) -> dict[str, object]:
    said = {"value": key.value, "from": key.origin.kind, "set": key.is_set}
    where = {"name": key.origin.name, "line": key.origin.line}
    return said | {name: value for name, value in where.items() if value}


def check(arguments: argparse.Namespace) -> None:
    """Print one fault a line, or what is likely wrong though valid; ConfigError with the number of faults, so that the
    exit status says that there are some."""
    faults = faults_in(arguments.config, arguments.set, further=None if arguments.no_files else file_faults)
    settings = None if faults else load_with_origins(arguments.config, arguments.set)[0]
    policy, warnings = (None, []) if settings is None else (settings.policy.fingerprint(), _warnings(settings))
    if arguments.json:
        shown = [_of_fault(fault) for fault in faults]
        found = {"valid": not faults, "policy": policy, "faults": shown, "warnings": warnings}
        print(json.dumps(found, indent=2), flush=True)
    elif faults:
        print("\n".join(map(str, faults)), flush=True)
    else:
        for warning in warnings:
            print(f"warning: {warning}")
        print(f"{arguments.config or 'the configuration'}: valid, policy {policy}")
    if faults:
        raise ConfigError(f"{len(faults)} {'fault' if len(faults) == 1 else 'faults'} in the configuration")


def _warnings(settings: Settings) -> list[str]:
    return [
        f"source.{name} = {path!r} reads element {at} of each array alone: if it has pings, set source.records"
        for name, (path, at) in settings.source.mapping.one_element.items()
    ]


def _of_fault(fault: Fault) -> dict[str, object]:
    said: dict[str, object] = {"message": fault.message}
    if fault.origin is not None:
        said |= {"from": fault.origin.kind, "name": fault.origin.name}
        said |= {} if fault.origin.line is None else {"line": fault.origin.line}
    return said
