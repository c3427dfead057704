"""auxtap in a notebook: what `auxtap.open_source` and `auxtap.open_store` return."""
