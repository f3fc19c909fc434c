#!/bin/sh
# Every test: on SQLite before everybody's eyes and, at the same time, what is marked `database` on PostgreSQL.
# Usage: tools/test.sh PYTHON [arguments of pytest]; with arguments only what they choose, on SQLite.
set -eu
python=$1
shift
[ $# -eq 0 ] || exec "$python" -m pytest "$@"

log=$(mktemp)
BROKER_TEST_DATABASE=postgres "$python" -m pytest -n 1 >"$log" 2>&1 &
postgres=$!
trap 'kill "$postgres" 2>/dev/null || true; rm -f "$log"' EXIT
trap 'exit 130' INT TERM

sqlite_status=0
"$python" -m pytest || sqlite_status=$?
postgres_status=0
wait "$postgres" || postgres_status=$?
echo
echo "The tests of the database, on PostgreSQL:"
cat "$log"
[ "$sqlite_status" -eq 0 ] || exit "$sqlite_status"
exit "$postgres_status"
