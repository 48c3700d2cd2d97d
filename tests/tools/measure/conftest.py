"""What the measurements on PyTorch's operator database need: one thread, as in a run of all operators."""

import pytest
import torch


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
