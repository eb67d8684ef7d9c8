"""Who generates kernels: a table of generators by kind of target and type of spec."""
