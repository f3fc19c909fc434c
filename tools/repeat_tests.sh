#!/bin/sh
# The whole suite several times in a row, and what failed. Usage: tools/repeat_tests.sh PYTHON TIMES [busy]
# With a third word one process a core computes all the while: what depends on speed shows itself.
set -eu
python=$1
times=$2
busy=${3:-}
here=$(dirname "$0")
log=$(mktemp)
spinners=""
trap 'for one in $spinners; do kill "$one" 2>/dev/null || true; done; rm -f "$log"' EXIT
trap 'exit 130' INT TERM
if [ -n "$busy" ]; then
    for _ in $(seq "$(nproc)"); do
        "$python" -c "while True: pass" &
        spinners="$spinners $!"
    done
fi

failures=0
for run in $(seq "$times"); do
    begun=$(date +%s)
    outcome=passed
    sh "$here/test.sh" "$python" >"$log" 2>&1 || outcome=FAILED
    echo "run $run of $times: $outcome in $(($(date +%s) - begun)) s"
    if [ "$outcome" = FAILED ]; then
        failures=$((failures + 1))
        grep -E "^(FAILED|ERROR) " "$log" || tail -n 40 "$log"
    fi
done
echo "$failures of $times runs failed"
[ "$failures" -eq 0 ]
