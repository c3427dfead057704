"""What the tracer found, as data: sites, branches, flows, hazards; imports nothing that parses."""
