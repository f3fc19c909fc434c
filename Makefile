# Everything a person does here. `make help` lists it.
PYTHON ?= python3
PY := .venv/bin/python
PACKAGES := broker_project tasks feeds fixtures sandbox tests tools broker_client.py manage.py
PYTEST_ARGS ?=
export PYTHONUNBUFFERED := 1

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev system-packages run test fuzz check format format-check lint types deploy-check lock messages clean

help: ## list these commands
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

setup:
	@$(PYTHON) tools/bootstrap.py

setup-dev:
	@$(PYTHON) tools/bootstrap.py --dev

# In CI a missing browser or database is installed first, and a skip is a failure.
system-packages:
	@if [ "$$CI" = "true" ]; then sh tools/system_packages.sh; fi

run: setup ## install what is missing and serve everything on http://127.0.0.1:8000 (PORT=, HOST=)
	@exec $(PY) manage.py broker

test: setup-dev system-packages ## install what tests need and run them all (PYTEST_ARGS= to choose)
	@$(PY) -m pytest $(PYTEST_ARGS)

fuzz: setup-dev ## thousands of new examples for parsers, names, keys, texts and the API (PYTEST_ARGS= to choose)
	@HYPOTHESIS_PROFILE=long $(PY) -m pytest tests/fuzz tests/untrusted/test_hidden_text.py $(PYTEST_ARGS)

check: setup-dev format-check lint types deploy-check ## format, lint, types, deployment settings, missing migrations

format-check:
	@$(PY) -m ruff format --check $(PACKAGES)

lint:
	@$(PY) -m ruff check $(PACKAGES)

types:
	@$(PY) -m mypy

deploy-check:
	@sh tools/deploy_check.sh $(PY)

format: setup-dev ## rewrite the code in the house's format
	@$(PY) -m ruff format $(PACKAGES)
	@$(PY) -m ruff check --fix $(PACKAGES)

lock: setup-dev ## compile requirements*.txt from requirements*.in
	@sh tools/lock.sh $(PY)

messages: setup-dev ## collect and compile translations (needs gettext)
	@$(PY) manage.py makemessages -l ja --no-location --ignore .venv --ignore var
	@$(PY) manage.py compilemessages --ignore .venv

clean: ## remove the virtual environment and caches (not var/)
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
