"""Other systems' interfaces to mixed precision, thin mappings onto `autocast.policy.Policy`: docs/coming_from.md."""
