"""What follows the releases: of PyTorch, and of all that `requirements.txt` pins."""
