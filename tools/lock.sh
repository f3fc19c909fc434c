#!/bin/sh
# Compile the pinned requirement files from the short lists of direct dependencies, with the hashes of every file
# that the package index has of them. That takes some minutes.
set -eu
for name in requirements requirements-dev; do
  "$1" -m piptools compile -q --generate-hashes --allow-unsafe --strip-extras --no-header --annotation-style=line \
    --no-emit-index-url --no-emit-find-links --no-emit-trusted-host "$name.in" -o "$name.txt"
done
