"""What to insert where; rewriters propose and never touch a file."""
