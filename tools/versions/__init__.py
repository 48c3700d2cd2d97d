"""The commands that follow new versions: of PyTorch, and of the packages that `requirements.txt` pins."""
