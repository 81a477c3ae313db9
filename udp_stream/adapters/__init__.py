"""The world outside the core: files, stores, sockets, clocks and entropy behind the promises of `port.py`."""
