# Needs Python >= 3.11, make and pip; everything else goes into .venv.
#   make demo    the main job, end to end
#   make test    everything that CI runs
#   make lint | bench | clean | distclean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The stamp is written last, and it names the folder: a half-made environment, or one that was moved
# together with the checkout (its path entry points to the old place), is installed again.
STAMP := $(VENV)/.installed
# Two workers; a file's tests stay together, because they share fixtures that are slow to make.
PYTEST_ARGS ?= -n 2 --dist loadfile

.PHONY: demo test lint bench clean distclean moved
.DELETE_ON_ERROR:

demo: $(STAMP)
	$(BIN)/python experiments/demo.py

test: lint
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check
	$(BIN)/python -m mypy
	$(BIN)/python -m mypy strategies

# Those that take half an hour each are run by hand.
LONG := $(addprefix benchmarks/,quality.py decision_quality.py live_null.py inert_backend.py)

bench: $(STAMP)
	set -e; for file in $(filter-out $(LONG),$(wildcard benchmarks/*.py)); do echo "== $$file"; $(BIN)/python "$$file"; done

ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
$(STAMP): moved
moved:
endif

$(STAMP): pyproject.toml
	@set -e; \
	fits='import sys; sys.exit(sys.version_info < (3, 11))'; \
	python=; \
	for name in "$(PYTHON)" python3.13 python3.12 python3.11; do \
	  if "$$name" -c "$$fits" >/dev/null 2>&1; then python=$$name; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "error: gpt_search needs Python 3.11 or newer; '$(PYTHON)' is $$("$(PYTHON)" --version 2>/dev/null || echo missing)." >&2; \
	  echo "       Install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; \
	fi; \
	if ! "$(BIN)/python" -c "$$fits" 2>/dev/null || ! "$(BIN)/python" -m pip --version >/dev/null 2>&1; then \
	  echo "Making $(VENV) with $$("$$python" --version)"; \
	  rm -rf $(VENV); \
	  if "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	    "$$python" -m venv $(VENV); \
	  elif "$$python" -c 'import pip, venv' 2>/dev/null; then \
	    "$$python" -m venv --without-pip $(VENV); \
	    "$$python" -m pip --python $(BIN)/python install --quiet pip; \
	  else \
	    echo "error: '$$python' has neither ensurepip nor pip (Debian splits them off): apt-get install python3-venv" >&2; \
	    exit 1; \
	  fi; \
	fi; \
	echo "Installing gpt_search and what it needs into $(VENV)"; \
	"$(BIN)/python" -m pip install --quiet --disable-pip-version-check -e '.[dev]'; \
	printf '%s' '$(CURDIR)' > $@

# Studies (*.journal) are the user's: no target removes them.
clean:
	rm -rf build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name .venv -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf

distclean: clean
	rm -rf $(VENV)
