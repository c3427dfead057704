"""The trainers' formats, one module each."""
