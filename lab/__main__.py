"""`python -m lab`: the papers' figures and tables, as `udp-stream reproduce` computes them."""

import sys

from udp_stream.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["reproduce", *sys.argv[1:]]))
