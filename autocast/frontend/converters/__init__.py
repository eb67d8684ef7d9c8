"""The converters: one function of the nodes of each torch operator that stays whole. `table` has them all."""
