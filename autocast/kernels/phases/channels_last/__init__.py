"""Keep the channels of images last in memory from one convolution to the next."""
