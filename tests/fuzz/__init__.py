"""Random Relax modules as engineers write them, compiled and compared with an interpreter in float64.

The interpreter (`interpreter.py`, `operators/`) shares no code with the compiler: it walks TVM's IR and computes with
numpy. `python -m tests.fuzz --help` runs as many modules as one likes.
"""
