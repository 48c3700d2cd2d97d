"""The measurements, one command in each file. The recorded tables are in `results/`."""
