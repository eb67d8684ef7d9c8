"""What no kernel of ours takes: TVM's legalization and fusion, with schedules and a few functions of our own."""
