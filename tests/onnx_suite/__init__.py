"""ONNX's own node tests: `python -m tests.onnx_suite` runs all of them."""
