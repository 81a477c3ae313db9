"""Windows: columns to closed slots, by the clock of the log."""
