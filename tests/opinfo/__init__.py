"""torch's own operators on torch's own samples, imported, compiled and run: `python -m tests.opinfo`."""
