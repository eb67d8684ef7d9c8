"""Which operators of an exported program stay whole, and what the others are split into."""
