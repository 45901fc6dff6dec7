"""What the command line and the console do alike."""
