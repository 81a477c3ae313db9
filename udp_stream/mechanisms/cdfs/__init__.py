"""CDFs of the speeds in a HAT, private at user level: bins, trees, their search, consistency (arXiv 2409.18573)."""

from udp_stream.mechanisms.cdfs.mechanism import CdfMechanism, TreeCdf

__all__ = ["CDF_MECHANISMS", "CdfMechanism", "TreeCdf"]

CDF_MECHANISMS: dict[str, CdfMechanism] = {mechanism.name: mechanism for mechanism in (TreeCdf(),)}
"""By their names in terms."""
