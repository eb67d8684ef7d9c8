"""Groups of elementwise operators, with whatever they broadcast, as one kernel each."""
