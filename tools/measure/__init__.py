"""What measures, one command a file; the recorded tables lie in `results/`."""
