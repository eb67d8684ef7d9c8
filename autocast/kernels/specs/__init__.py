"""What a kernel is to compute, whoever finds it and whoever generates it: frozen values; equal ones share a kernel."""
