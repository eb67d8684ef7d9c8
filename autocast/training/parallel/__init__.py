"""Training by several processes, each on its share of the batches, with the same parameters in all of them."""
