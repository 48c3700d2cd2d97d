"""The whole book as one EPUB. Sphinx writes the pages of the site again for e-readers, and executes nothing."""

from __future__ import annotations

import shutil

from .project import Problem, Project
from .serve import built
from .steps.render import Renderer, RenderFailed
from .steps.site import Site


def epub(project: Project) -> None:
    """Write the book into `_build/zero-or-nan.epub`, from the executed notebooks that the site was made from.

    Raises:
        Problem: if no site is built, if its sources have changed since, or if a page can't be written.
    """
    built(project)
    if not Site(project).is_current():
        raise Problem("the site is missing, or its sources have changed since it was built: run `make book` first")
    folder = project.build / "epub"
    shutil.rmtree(folder, ignore_errors=True)  # without this, Sphinx writes only the pages that it considers changed
    with Renderer(project, "epub") as renderer:
        try:
            renderer.render()
        except RenderFailed as error:
            raise Problem(f"the EPUB could not be written:\n{error}") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"written: {project.epub.relative_to(project.root)}, {project.epub.stat().st_size / 2**20:.1f} MiB")
