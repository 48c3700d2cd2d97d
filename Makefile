# Every target is one step of the pipeline in tools/; `make book` and `make test` set up .venv by themselves.
PYTHON ?= python3
JOBS ?= 2
BIN := .venv/bin
RUN := $(BIN)/python -m tools
# Comes before apt-get, whose own message does not say what to do.
ROOT = [ "$$(id -u)" = 0 ] || { echo "error: installing packages by apt needs root: run sudo apt-get install chromium epubcheck nodejs npm, then make browser again" >&2; exit 1; };

.DEFAULT_GOAL := help
.PHONY: help book chapter check test browser notebooks record serve site-report bench costs mended masked honesty explained setups coverage mutants noticed matrix peers lint pins outdated audit watch pdf epub clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 15

book: $(BIN)/.ready  ## build the site into _build/html; fails when a result no longer reproduces
	$(RUN) book

check: $(BIN)/.ready  ## run every chapter, or CHAPTER=name alone, and check every claim, without building the site
	$(RUN) check $(CHAPTER)

test: $(BIN)/.ready  ## run all tests, JOBS=2 at a time
	$(BIN)/python -m pytest -n $(JOBS)

browser: $(BIN)/.ready tests/site/node_modules/.ready  ## install Chromium and epubcheck (both need root), axe-core and Lighthouse, which the tests of the site need
	@$(BIN)/python -c 'from tools.measure.browser import executable as e; exit(not e())' || { $(ROOT) apt-get update && apt-get install -y chromium; }
	@command -v epubcheck || { $(ROOT) apt-get update && apt-get install -y epubcheck; }

tests/site/node_modules/.ready: tests/site/package-lock.json
	@command -v npm || { $(ROOT) apt-get update && apt-get install -y nodejs npm; }
	npm ci --prefix tests/site --no-audit --no-fund
	touch $@

notebooks: $(BIN)/.ready  ## write notebooks/*.ipynb from chapters/*.md
	$(RUN) notebooks

chapter: $(BIN)/.ready  ## write the chapter of an edited notebook: NOTEBOOK=path/to/where-over-exp.ipynb, downloaded from Colab, say
	$(RUN) chapter $(if $(NOTEBOOK),"$(NOTEBOOK)") $(CHAPTER)

record: $(BIN)/.ready  ## write what this PyTorch gave to results/
	$(RUN) record

serve: $(BIN)/.ready  ## show the built site on http://127.0.0.1:8000
	$(RUN) serve

pdf: $(BIN)/.ready  ## print the built site into _build/zero-or-nan.pdf; needs Chromium, which make browser installs
	$(RUN) pdf

epub: $(BIN)/.ready  ## write the pages of the built site into _build/zero-or-nan.epub, for e-readers
	$(RUN) epub

site-report: $(BIN)/.ready  ## measure the built site in a browser: Lighthouse, weight, axe-core
	$(RUN) site-report

bench: $(BIN)/.ready costs  ## measure what a gradient costs, then the build against the stock one and the floor
	$(RUN) bench

costs: $(BIN)/.ready  ## measure time and memory of ignoring into results/measured/
	$(RUN) costs

mended: $(BIN)/.ready  ## measure how many of PyTorch's own samples ignoring mends into results/measured/
	$(RUN) mended

masked: $(BIN)/.ready  ## measure which operators torch.masked has on this PyTorch, into results/measured/; make matrix does it on all
	$(RUN) masked

honesty: $(BIN)/.ready  ## look for what ignoring hides on PyTorch's own samples into results/measured/
	$(RUN) honesty

explained: $(BIN)/.ready  ## count the programs whose origin explain names, beside other tools, into results/measured/
	$(RUN) explained

setups: $(BIN)/.ready  ## run ignoring in all training setups, and write the table of them into results/measured/
	$(RUN) setups

matrix: $(BIN)/.ready  ## run claims, library tests and a sample of operators on many PyTorch versions (TORCH="2.9.1 2.15.0")
	$(RUN) matrix $(TORCH)

peers: $(BIN)/.ready  ## run the tests of other projects with ignoring into results/measured/, or of PEER=einops alone
	$(RUN) peers $(PEER)

coverage: $(BIN)/.ready  ## run the tests under coverage.py: which statements and branches they reach, into results/measured/
	$(RUN) coverage

mutants: $(BIN)/.ready  ## change the code and see whether its tests notice, into results/measured/; SAMPLE=200 of each part
	$(RUN) mutants $(if $(SAMPLE),--sample $(SAMPLE))

noticed: $(BIN)/.ready  ## change each cell that shows something, see whether the build notices, into results/measured/; or CHAPTER=name alone
	$(RUN) noticed $(CHAPTER) $(if $(SAMPLE),--sample $(SAMPLE))

lint: $(BIN)/.ready  ## style and types
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

pins: $(BIN)/.ready  ## try the newest versions of everything; keep them in requirements.txt if every claim holds
	$(RUN) pins

outdated: $(BIN)/.ready  ## say what `make pins` would try, and which packages of the site are not the newest
	$(RUN) outdated

audit: $(BIN)/.ready  ## ask whether a vulnerability is known in what is pinned
	$(RUN) audit

watch: $(BIN)/.ready  ## tell what is fixed upstream from what is broken here, on the PyTorch that is installed
	$(RUN) watch

clean:  ## remove what was built; .venv stays
	rm -rf _build

# The stamp is written last: an interrupted installation starts again.
$(BIN)/.ready: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; v < (3, 11) and sys.exit("error: this needs Python 3.11 or newer, and $(PYTHON) is %d.%d; name another: make $(MAKECMDGOALS) PYTHON=python3.13" % v[:2])'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@
