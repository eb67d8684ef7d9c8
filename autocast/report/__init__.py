"""What is shown to people: tables of casts, latencies and memory."""
