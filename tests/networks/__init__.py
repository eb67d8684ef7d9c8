"""Random networks of torch's layers, through each door, against torch in float64."""
