"""Modules of torch as torch.export takes them: all that it refuses or would get wrong, and checks of what it did."""
