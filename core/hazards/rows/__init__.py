"""One file a hazard, found by its name; each holds one `HAZARD`."""
