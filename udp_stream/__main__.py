"""`python -m udp_stream`: the command line."""

import sys

from udp_stream.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
