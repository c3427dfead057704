"""Give each name of the capture pipeline its role."""
