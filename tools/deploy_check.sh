#!/bin/sh
# Django's deployment checks on production-like settings, and migrations that somebody forgot to make.
set -eu
var=$(mktemp -d)
trap 'rm -rf "$var"' EXIT
export BROKER_ENV_FILE= BROKER_VAR="$var" BROKER_SANDBOX=0 DJANGO_DEBUG=0
export DJANGO_ALLOWED_HOSTS=broker.example.org DJANGO_CSRF_TRUSTED_ORIGINS=https://broker.example.org
DJANGO_SECRET_KEY=$("$1" -c 'import secrets; print(secrets.token_urlsafe(64))')
export DJANGO_SECRET_KEY
unset REDIS_URL DATABASE_URL
"$1" manage.py check --deploy --fail-level WARNING
"$1" manage.py makemigrations --check --dry-run
