"""From an exported, split program to a Relax module, node by node."""
