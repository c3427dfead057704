"""What the tap leaves in the spool, believed only when compared."""
