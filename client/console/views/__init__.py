"""What each page of the console shows, as values that become JSON."""
