"""The demonstrations behind `python -m autocast demo`: one BERT, run and trained, in four ways side by side."""
