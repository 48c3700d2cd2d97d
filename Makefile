# Every target runs one command of tools/, or the tests. Every target that needs .venv creates it.
PYTHON ?= python3
JOBS ?= 2
BIN := .venv/bin
RUN := $(BIN)/python -m tools
# Each process begins with a part of the tests, in their order, and takes more from the other one when it has run them.
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist worksteal
# Images of containers forbid bytecode. Then each of the processes that tests start would compile the library again.
export PYTHONDONTWRITEBYTECODE :=
# This check runs before apt-get, because the error message of apt-get does not say what to do.
ROOT = [ "$$(id -u)" = 0 ] || { echo "error: apt-get can install packages only as root: run sudo apt-get install chromium nodejs npm, then make browser again" >&2; exit 1; };

.DEFAULT_GOAL := help
.PHONY: help book check test test-fast test-whole browser notebooks record serve picture costs attention compiled gpu fixed masked honesty explained first-look penguins probe processors remedies setups colab twice coverage matrix jax lint pins audit clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 15

book: $(BIN)/.ready  ## build the site into _build/html; fails if a result no longer reproduces
	$(RUN) book

check: $(BIN)/.ready  ## run every chapter (or only CHAPTER=name) and check every claim, without building the site
	$(RUN) check $(CHAPTER)

# The variables hide what newer processors have: PyTorch, MKL and oneDNN then choose the kernels of older ones.
processors: $(BIN)/.ready  ## run make check as on a processor without AVX-512, then as on one without AVX2
	ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 $(RUN) check $(CHAPTER)
	ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2 ONEDNN_MAX_CPU_ISA=SSE41 $(RUN) check $(CHAPTER)

test: $(BIN)/.ready  ## run all tests, in two processes (or in JOBS=4)
	$(PYTEST)

test-fast: $(BIN)/.ready  ## run only the tests that need no site, no browser and no installation, for use while you work
	$(PYTEST) -m "not slow"

test-whole: $(BIN)/.ready  ## run all tests with all their cases; if a test has many similar cases, make test runs a sample
	WHOLE_TESTS=1 $(PYTEST)

browser: $(BIN)/.ready tests/site/node_modules/.ready  ## install what the tests of the site need: Chromium (which needs root) and axe-core
	@$(BIN)/python -c 'from tools.measure.browser import executable as e; exit(not e())' || { $(ROOT) apt-get update && apt-get install -y chromium; }

tests/site/node_modules/.ready: tests/site/package-lock.json
	@command -v npm || { $(ROOT) apt-get update && apt-get install -y nodejs npm; }
	npm ci --prefix tests/site --no-audit --no-fund
	touch $@

notebooks: $(BIN)/.ready  ## write notebooks/*.ipynb from chapters/*.md
	$(RUN) notebooks

record: $(BIN)/.ready  ## write the results of this PyTorch to results/
	$(RUN) record

serve:  ## serve the built site on http://127.0.0.1:8000
	@test -f _build/html/index.html || { echo "error: the site is not built yet: run make book first" >&2; exit 1; }
	$(PYTHON) -m http.server --bind 127.0.0.1 --directory _build/html 8000

picture: $(BIN)/.ready  ## take the picture of the README from the built site; needs Chromium, which make browser installs
	$(RUN) picture

costs: $(BIN)/.ready  ## measure time and memory of ignoring; write results/measured/
	$(RUN) costs

fixed: $(BIN)/.ready  ## measure on how many of PyTorch's own samples ignoring fixes the gradient; write results/measured/
	$(RUN) fixed

attention: $(BIN)/.ready  ## try masked rows in Flex attention and in a Hugging Face model on this PyTorch; write results/measured/
	$(RUN) attention

gpu: $(BIN)/.ready  ## on a machine with a GPU, run the self-check, time a step, and try masked rows in its attention kernel; write results/measured/
	$(RUN) on-gpu

masked: $(BIN)/.ready  ## measure which operators torch.masked has on this PyTorch; write results/measured/ (make matrix does so for every release)
	$(RUN) masked

compiled: $(BIN)/.ready  ## measure how much ignoring follows in compiled regions (or only under BACKEND="aot_eager inductor"); write results/measured/
	$(RUN) compiled $(BACKEND)

honesty: $(BIN)/.ready  ## look for NaN that the loss uses and ignoring hides, on PyTorch's own samples; write results/measured/
	$(RUN) honesty

explained: $(BIN)/.ready  ## count how often other tools than explain name the line at fault; write results/measured/
	$(RUN) explained

first-look: $(BIN)/.ready  ## paste the remedy of explain into each program from public reports; write results/measured/
	$(RUN) first-look

probe: $(BIN)/.ready  ## search the losses of a corpus, and PyTorch's own, for a NaN before it happens; write results/measured/
	$(RUN) probe

penguins: $(BIN)/.ready  ## train on the Palmer penguins with 0 to 60 % of the data missing, method by method; write results/measured/
	$(RUN) penguins

remedies: $(BIN)/.ready  ## measure the time of each remedy of the page that compares them; write results/measured/
	$(RUN) remedies

setups: $(BIN)/.ready  ## run ignoring in all training setups; write their table to results/measured/
	$(RUN) setups

colab: $(BIN)/.ready  ## run every notebook as Colab runs it; make test runs one
	WHOLE_TESTS=1 $(BIN)/python -m pytest -n 0 tests/installed/test_colab.py

twice: $(BIN)/.ready  ## build the site twice, the second time from nothing, and compare every byte; make test does so with a small book
	WHOLE_TESTS=1 $(BIN)/python -m pytest -n 0 tests/site/test_builds.py

matrix: $(BIN)/.ready  ## run claims, library tests and a sample of operators on all PyTorch releases (or on TORCH="2.9.1 2.15.0")
	$(RUN) matrix $(TORCH)

jax: $(BIN)/.ready  ## run the programs of the boxes In JAX with JAX; write their output to the pages and to results/measured/
	$(RUN) jax

coverage: $(BIN)/.ready  ## run all tests, and report the statements and branches that they do not reach; pages in _build/coverage/html
	$(PYTEST) --cov --cov-report=term --cov-report=html

lint: $(BIN)/.ready  ## check style and types
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy --num-workers $(JOBS)

# pip-compile and not uv, because only the former uses the settings of pip, such as the index of PyTorch for CPUs. It gets the
# requirements from a pipe, because it can't read dependency groups. sed removes the mark of a build, as in 2.13.0+cpu.
# The pins have no hashes. With hashes, pip refuses any package that the file does not list. On Linux, PyTorch from PyPI needs packages
# for CUDA, its build for CPUs needs none of them, and no marker tells the two builds apart: so one file can't serve both.
GROUPS := import tomllib; [print(*group, sep="\n") for group in tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"].values()]
pins: $(BIN)/.ready  ## compile requirements.txt with the newest versions; restore it if a claim, the site or make lint fails
	@mkdir -p _build && rm -f _build/newest.txt && cp requirements.txt _build/before.txt
	$(BIN)/python -c '$(GROUPS)' | $(BIN)/pip-compile --quiet --strip-extras --allow-unsafe --no-header \
	  --no-emit-find-links --no-emit-index-url --no-emit-trusted-host -o _build/newest.txt -
	sed -E 's/^(torch==[0-9.]+)\+.*/\1/' _build/newest.txt > requirements.txt
	@diff _build/before.txt requirements.txt | grep '^[<>].*==' || echo "every pin is already the newest version that fits"
	$(MAKE) record book lint || { cp _build/before.txt requirements.txt; echo "error: the newer pins fail, so requirements.txt is as before (git checkout results restores the records). Fix the cause, or limit a version in pyproject.toml" >&2; exit 1; }

# $(call until,2027-01-31,GHSA-…) excepts an advisory until this day. SECURITY.md says which exceptions are allowed.
until = $(if $(shell [ "$$(date +%F)" "<" "$(1)" ] && echo yes),--ignore-vuln $(2))
EXCEPTIONS :=
audit: $(BIN)/.ready  ## check whether a pinned package has a known vulnerability
	@status=0; $(BIN)/pip-audit --strict --no-deps --disable-pip --progress-spinner off -r requirements.txt $(EXCEPTIONS) || status=1; \
	  npm audit --prefix tests/site || status=1; exit $$status

clean:  ## remove everything that was built; .venv stays
	rm -rf _build

# The file .ready is written last, so that an interrupted installation starts again.
$(BIN)/.ready: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; v < (3, 11) and sys.exit("error: this needs Python 3.11 or newer, and $(PYTHON) is %d.%d; name another Python: make $(MAKECMDGOALS) PYTHON=python3.13" % v[:2])'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -r requirements.txt
	@$(BIN)/python -m compileall -qq -j 0 .venv/lib || true  # pip would use one processor; a few files are templates
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@
