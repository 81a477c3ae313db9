"""Continual, user-level differentially private statistics from live bus feeds.

The files of this folder are pure: arrays in, arrays out. They ask for neither time, entropy, files nor network; all
of that lives in `udp_stream.adapters` and in `streams`.
"""

__version__ = "0.1.0"
