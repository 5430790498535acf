# make book    build the book into _build/html
# make test    run every test and every notebook
# make lab     open the notebooks in JupyterLab
# make stress  run the long checks (kills, fuzz, large inputs)
# make fresh   build the book without any cached or shipped model results
# make data    rebuild the embedded collection from its sources
# make clean   remove what was built

SHELL := /bin/bash
.SHELLFLAGS := -eo pipefail -c
PYTHON ?= python3
BIN := .venv/bin
export HF_HUB_OFFLINE := 1

.PHONY: book test lab stress fresh data lint clean

.venv/installed: requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

book: .venv/installed
	$(BIN)/python book/drop_stale_cache.py
	$(BIN)/jupyter-book build . --warningiserror --nitpick
	@echo "Open _build/html/index.html"

test: .venv/installed
	$(BIN)/python -m pytest --nbmake --nbmake-timeout=900 -m "not stress" tests $(wildcard notebooks/*.ipynb)

stress: .venv/installed
	$(BIN)/python -m pytest -m stress tests

lab: .venv/installed
	$(BIN)/jupyter lab --notebook-dir=notebooks

fresh: .venv/installed
	rm -rf _build
	cache=$$(mktemp -d) && RAG_LAB_FRESH=1 RAG_LAB_CACHE=$$cache $(MAKE) book; status=$$?; rm -rf $$cache; exit $$status

data: .venv/installed
	$(BIN)/python collection/build.py
	$(BIN)/rag-lab check "$$($(BIN)/rag-lab data)"

lint: .venv/installed
	$(BIN)/ruff check rag_lab tests collection book
	$(BIN)/ruff format --check rag_lab tests collection book

clean:
	rm -rf _build .pytest_cache .hypothesis
