"""The runtime of one machine: the whole road in one process, over a recording or a live source."""
