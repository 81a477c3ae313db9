"""Forecasts of a slot's speeds from counts and earlier releases. They see no speed, so they cost no
budget."""
