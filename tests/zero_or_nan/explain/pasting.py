"""Programs that are files, so that a remedy can be pasted into one, and the file can run again."""

HEAD = "import torch\nimport torch.nn.functional as F\n"


def leaf(values, dtype="torch.float32"):
    return f"x = torch.tensor({values}, dtype={dtype}, requires_grad=True)\n"


def ran(path):
    """The variables of a program."""
    names = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names


def pasted(path, origin):
    """The variables of a program, with the remedy in place of the line that it replaces."""
    lines = path.read_text().splitlines()
    line = lines[origin.replaces - 1]
    indent = line[: len(line) - len(line.lstrip())]
    lines[origin.replaces - 1 : origin.replaces] = [indent + each for each in origin.remedy.splitlines()]
    path.write_text("\n".join(lines))
    return ran(path)
