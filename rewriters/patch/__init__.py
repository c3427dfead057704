"""Put a patch together: plan, text, manifest."""
