"""What a kernel is to compute, found in the module: patterns become frozen specs, whatever the target."""
