# `make gate` runs the main job and `make test` the project's tests; both set everything up.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: gate refresh test lint suites suites-deepspeed deepspeed clean

gate: $(STAMP)        ## measure and gate against the stored baselines
	$(BIN)/pytest --perfgate suites

refresh: $(STAMP)     ## the same, and store the run as a baseline session
	$(BIN)/pytest --perfgate --perfgate-refresh suites

suites: $(STAMP)      ## the suites' correctness alone
	$(BIN)/pytest suites

test: $(STAMP)        ## the project's own tests
	$(BIN)/pytest tests

lint: $(STAMP)        ## style, types, layers, workflows
	$(BIN)/pip install --quiet -c constraints.txt -e '.[test,lint]'
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

suites-deepspeed: deepspeed  ## collectives and logger against the real DeepSpeed, its faults as xfails
	$(BIN)/pytest suites/comm --perfgate-provider=deepspeed

deepspeed: $(STAMP)   ## the provider `deepspeed`, so that the suites run against it too
	DS_BUILD_OPS=0 $(BIN)/pip install --quiet --no-build-isolation -c constraints.txt 'deepspeed>=0.19,<0.20'

clean:
	rm -rf $(VENV) .perfgate .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
	  echo "make: no $(PYTHON) here. Install Python 3.10 or newer, or say which:"; \
	  echo "      make $(or $(MAKECMDGOALS),gate) PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "make: $(PYTHON) is `$(PYTHON) -V`; perfgate needs 3.10 or newer:"; \
	  echo "      make $(or $(MAKECMDGOALS),gate) PYTHON=/path/to/python3"; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || { \
	  echo "make: $(PYTHON) cannot make a virtual environment; on Debian: apt install python3-venv"; \
	  rm -rf $(VENV); exit 1; }
	@echo "installing into $(VENV) (torch alone can take minutes)"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]' || { \
	  echo "make: the packages could not be installed; the reason stands above. Where no package"; \
	  echo "      registry can be reached, point pip to a mirror (PIP_INDEX_URL) or to wheels on"; \
	  echo "      disk (PIP_FIND_LINKS, PIP_NO_INDEX=1) and run make again."; exit 1; }
	@touch $@
