"""What generated kernels are made of: vectors of one instruction set, functions of them, and the LLVM IR below."""
