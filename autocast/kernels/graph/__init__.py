"""What is done to a whole Relax function before kernels are chosen, and the tools for rewriting one."""
