"""Shows a newcomer two sites on this machine, from the installed package alone."""
