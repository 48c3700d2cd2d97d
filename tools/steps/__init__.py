"""What runs in `make book`, in this order: pair, execute, collect, render; and on request record."""
