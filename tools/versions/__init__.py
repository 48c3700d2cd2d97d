"""What follows PyTorch from release to release."""
