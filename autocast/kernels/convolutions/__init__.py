"""Convolutions as implicit matrix products over NHWC data, and pooling; and the rule that finds them."""
