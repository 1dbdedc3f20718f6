"""What all checks share: the rules and their explanations, findings, digests of ranges."""
