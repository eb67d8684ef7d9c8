"""Move data at memory speed: permutations, joins, cuts, repeats, casts and lookups."""
