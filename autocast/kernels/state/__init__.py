"""What a step replaces, and where tensors live: updates in place, order of calls, views of outputs."""
