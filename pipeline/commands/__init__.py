"""The commands of `aerobee pipeline` that have a file of their own."""
