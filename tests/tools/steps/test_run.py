"""What becomes of a kernel's outputs."""

from nbformat.v4 import new_output

from tools.steps.run import whole


def said(*texts, name="stdout"):
    return [new_output("stream", name=name, text=text) for text in texts]


def test_a_line_that_came_in_pieces_is_one_line():
    (output,) = whole(said("nan", " tensor([0.])\n", "next\n"))
    assert output.text == "nan tensor([0.])\nnext\n"


def test_what_was_said_elsewhere_or_between_stays_apart():
    shown = new_output("display_data", data={"text/plain": "x"})
    outputs = [*said("a\n"), *said("warned\n", name="stderr"), shown, *said("b\n")]
    assert whole(outputs) == outputs


def test_nothing_comes_of_nothing():
    assert whole([]) == []
