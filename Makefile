# Everything runs in .venv, made here on first use: only Python 3.11+ with pip (and venv) is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT := demo-out
# Processes that run tests side by side; the slowest tests bring threads of their own.
JOBS ?= 2
# More for pytest, such as FLAGS="-x tests/check/test_check.py".
FLAGS ?=
# What runs pytest, such as MEASURE="-m coverage run".
MEASURE ?=
# How many files `make fuzz` makes wrong.
CASES ?= 10000
# How many random plans `make soak` trains.
SOAKED ?= 1000
# Where tests look for data sets first (docs/models.md), here for those that pip brings but does not install.
export CONTRAFLOW_DATA ?= $(CURDIR)/$(VENV)/data

# The CPU build that CI uses; `pip install 'contraflow[torch]'` takes the newest.
TORCH := torch==2.13.0

REVIEWS := $(VENV)/data/vaderSentiment-3.3.2.tar.gz

# mypy and mkdocs do not follow the import hook of an editable install: they read the package through these links.
PACKAGE := __init__.py __main__.py py.typed planner executor models

.PHONY: help demo test test-long docs site faults fuzz gpu soak lint clean

help:
	@echo "make demo   profile, plan, check, draw and train a small GPT on two processes ($(OUT)/)"
	@echo "make test   the fast test suite; make test-long: those of its tests that take seconds each"
	@echo "make fuzz   wrong files and op lists for every reader and command (CASES=10000)"
	@echo "make gpu    all that needs a GPU: tests, then benchmarks/results/gpu.json"
	@echo "make soak   random plans of every kind, trained and held against plain torch (SOAKED=1000)"
	@echo "make faults small runs in which processes, disks and user code fail"
	@echo "make docs   the documentation as a site, at http://127.0.0.1:8000"
	@echo "make lint   ruff, mypy and the rules of who imports whom"

$(VENV)/pyvenv.cfg:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml $(VENV)/pyvenv.cfg
	printf '%s\n' '$(TORCH)' > $(VENV)/constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(VENV)/constraints.txt -e '.[torch]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(VENV)/constraints.txt -e '.[torch,test,lint]'
	touch $@

demo: $(VENV)/.installed
	bash examples/demo.sh $(BIN) $(OUT)

# The reviews are in a source distribution alone; without it the tests that read them are skipped and say so.
$(REVIEWS): | $(VENV)/.installed-dev
	@$(BIN)/python -m pip download --quiet --disable-pip-version-check --retries 1 --no-deps \
	    --no-binary vadersentiment -d $(@D) vaderSentiment==3.3.2 || echo "no reviews to be had"

# The tests start hundreds of processes: what these import and compile lies on disk beforehand.
test: TESTS := not slow and not long
test-long: TESTS := long and not slow
test test-long: $(VENV)/.installed-dev $(REVIEWS)
	@$(BIN)/python -m compileall -q planner executor models tests benchmarks examples
	@$(BIN)/python tests/kit/compile_first.py
	$(BIN)/python $(MEASURE) -m pytest -q -rs -n $(JOBS) --dist worksteal -m "$(TESTS)" $(FLAGS)

faults: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/reliability/faults.py

gpu: $(VENV)/.installed-dev
	@status=0; \
	$(BIN)/python -m pytest -q -rs tests/execute/test_cuda.py tests/execute/test_enforce_cuda.py $(FLAGS) || status=1; \
	$(BIN)/python benchmarks/gpu.py || status=1; exit $$status

fuzz: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/reliability/fuzz.py --cases $(CASES)

soak: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/reliability/soak.py --cases $(SOAKED)

$(VENV)/.installed-docs: pyproject.toml $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(VENV)/constraints.txt -e '.[docs]'
	touch $@

$(VENV)/typing/contraflow:
	mkdir -p $@
	ln -sfn $(addprefix $(CURDIR)/,$(PACKAGE)) $@

# A site in site/, with every warning an error; `make docs` serves it while it is written.
site: $(VENV)/.installed-docs $(VENV)/typing/contraflow
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs: $(VENV)/.installed-docs $(VENV)/typing/contraflow
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

lint: $(VENV)/.installed-dev $(VENV)/typing/contraflow
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=$(VENV)/typing $(BIN)/mypy
	PYTHONPATH=$(VENV)/typing $(BIN)/lint-imports --config .ci/imports.toml --no-cache

clean:
	rm -rf $(VENV) $(OUT) build dist site *.egg-info
