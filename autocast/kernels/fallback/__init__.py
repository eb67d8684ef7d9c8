"""What no kernel of ours takes: TVM's legalization and fusion, with schedules of our own."""
