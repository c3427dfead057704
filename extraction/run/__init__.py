"""One run of an extraction, from job to summary."""
