"""The steps of `make book`, in this order: pair, execute, collect, render. Record runs only on request."""
