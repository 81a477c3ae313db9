"""Release: draw, write down, publish."""
