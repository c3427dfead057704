"""What a person asks of a store."""
