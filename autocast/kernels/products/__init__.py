"""Matrix products with everything around them: packing, register tiles, epilogues, and the rule that finds them."""
