"""``make soak``: everything runs for minutes while parts of it are broken at random; then nothing may be broken."""
