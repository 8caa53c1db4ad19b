"""The worker's side: a process that brings tools and runs their bodies."""
