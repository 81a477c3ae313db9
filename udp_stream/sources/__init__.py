"""Where pings come from: files, recordings, and live sources with their journal."""
