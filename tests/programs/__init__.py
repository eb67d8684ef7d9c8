"""Random torch programs, views and writes among them, against torch: `python -m tests.programs --help`."""
