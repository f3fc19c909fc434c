#!/bin/sh
# Compile the pinned requirement files from the short lists of direct dependencies.
set -eu
for name in requirements requirements-dev; do
  "$1" -m piptools compile -q --strip-extras --no-header --annotation-style=line \
    --no-emit-index-url --no-emit-find-links --no-emit-trusted-host "$name.in" -o "$name.txt"
done
