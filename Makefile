# Everything a person does here. `make help` lists it.
PYTHON ?= python3
PY := .venv/bin/python
PACKAGES := broker_project tasks feeds fixtures sandbox bench tests tools broker_client.py manage.py
PYTEST_ARGS ?=
FAST := not process and not browser and not postgres and not slow
ARGS ?=
export PYTHONUNBUFFERED := 1

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev system-packages run test bench bench-quick check format format-check lint types deploy-check lock messages clean dependencies audit test-fast test-postgres test-repeat mutants scale faults fuzz soak chaos

help: ## list these commands
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile

setup:
	@$(PYTHON) tools/bootstrap.py

setup-dev:
	@$(PYTHON) tools/bootstrap.py --dev

# In CI a missing browser or database is installed first, and a skip is a failure.
system-packages:
	@if [ "$$CI" = "true" ]; then sh tools/system_packages.sh; fi

run: setup ## install what is missing and serve everything on http://127.0.0.1:8000 (PORT=, HOST=)
	@exec $(PY) manage.py broker

test: setup-dev system-packages ## every test, on SQLite and, where a database decides, on PostgreSQL (PYTEST_ARGS= to choose)
	@sh tools/test.sh $(PY) $(PYTEST_ARGS)

test-fast: setup-dev ## what to run before a commit: no browser, no processes (PYTEST_ARGS= to choose)
	@$(PY) -m pytest -m "$(FAST)" $(PYTEST_ARGS)

test-postgres: setup-dev system-packages ## the tests marked `database`, on a PostgreSQL of their own
	@BROKER_TEST_DATABASE=postgres $(PY) -m pytest $(PYTEST_ARGS)

test-repeat: setup-dev system-packages ## the whole suite again and again (N=10, BUSY=1 keeps all cores busy meanwhile)
	@sh tools/repeat_tests.sh $(PY) $(or $(N),10) $(BUSY)

mutants: setup-dev ## break one rule at a time and see whether `make test-fast` notices (ARGS="--only lease")
	@$(PY) -m tools.mutants $(ARGS)

scale: setup-dev system-packages ## two web processes, two clusters, 200 agents, 2,000 issues (SCALE_AGENTS=, SCALE_ISSUES=)
	@SCALE_AGENTS=$(or $(SCALE_AGENTS),200) SCALE_ISSUES=$(or $(SCALE_ISSUES),2000) $(PY) -m pytest -n 0 -s tests/scale

bench: setup ## measure what agents do all day beside the least that could do it, under ten minutes (ARGS="--quick --only request,waiting")
	@$(PY) -m bench $(ARGS)

bench-quick: setup ## the same with smaller numbers, about a minute
	@$(PY) -m bench --quick $(ARGS)

check: setup-dev format-check lint types dependencies deploy-check ## format, lint, imports, unused code, types, dependencies, deployment settings

faults: setup-dev system-packages ## break everything on purpose, at every step; the table is in var/faults/report.md
	@FAULTS=long $(PY) -m pytest tests/faults $(PYTEST_ARGS)

fuzz: setup-dev ## thousands of new examples for parsers, names, keys, texts and the API (PYTEST_ARGS= to choose)
	@HYPOTHESIS_PROFILE=long $(PY) -m pytest tests/fuzz tests/untrusted/test_hidden_text.py $(PYTEST_ARGS)

soak: setup-dev ## agents, feeds and matches at work while parts are broken at random (MINUTES=10, SEED=, ARGS=--postgres)
	@$(PY) -m tests.soak soak --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) $(ARGS)

chaos: setup-dev system-packages ## thirty agents through one heavy fault after another; who was idle for how long (MINUTES=9, SEED=, ARGS=--postgres)
	@$(PY) -m tests.soak chaos --minutes $(or $(MINUTES),9) $(if $(SEED),--seed $(SEED)) $(ARGS)

format-check:
	@$(PY) -m ruff format --check $(PACKAGES)

lint: ## ruff, the directions of imports, unused code
	@$(PY) -m ruff check $(PACKAGES)
	@.venv/bin/lint-imports --no-logo
	@$(PY) tools/dead_code.py

types:
	@$(PY) -m mypy

dependencies:
	@$(PY) -m pip check

audit: setup-dev ## known weaknesses of the pinned packages (asks an advisory service)
	@$(PY) tools/audit.py

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
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .grimp_cache
