"""What tracing leaves behind is taken away from an imported module, by rules."""
