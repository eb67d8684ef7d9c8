"""Which pattern is this: rules find what one kernel can compute, and describe it as a spec, whatever the target."""
