"""``make soak`` and ``make chaos``: everything runs for minutes while parts of it are broken; then nothing may be.

A soak breaks many things at once and asks every invariant. A chaos run breaks one thing after another, heavily, and
asks only what an outsider can know: what clients saw, the database, and GitHub's labels.
"""
