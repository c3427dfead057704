"""What every layer leans on; standard library only."""
