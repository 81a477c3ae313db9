"""Everything stands on this: arrays, errors, units, files, lines of the log, timetables, the version."""
