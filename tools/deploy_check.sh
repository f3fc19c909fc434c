#!/bin/sh
# Django's deployment checks on production-like settings, where a warning is an error, and migrations that somebody
# forgot to make. Once for the smallest installation, once with everything outside and everything set.
set -eu
var=$(mktemp -d)
trap 'rm -rf "$var"' EXIT
unset REDIS_URL DATABASE_URL
export BROKER_ENV_FILE= BROKER_VAR="$var" BROKER_SANDBOX=0 DJANGO_DEBUG=0
export DJANGO_ALLOWED_HOSTS=broker.example.org DJANGO_CSRF_TRUSTED_ORIGINS=https://broker.example.org
random() { "$1" -c 'import secrets; print(secrets.token_urlsafe(64))'; }
DJANGO_SECRET_KEY=$(random "$1")
export DJANGO_SECRET_KEY

"$1" manage.py check --deploy --fail-level WARNING
"$1" manage.py makemigrations --check --dry-run

export GITHUB_REPOSITORY=owner/name GITHUB_TOKEN="$(random "$1")" GITHUB_WEBHOOK_SECRET="$(random "$1")"
export GEMINI_API_KEY="$(random "$1")" API_FOOTBALL_KEY="$(random "$1")" BROKER_METRICS_TOKEN="$(random "$1")"
export MASTODON_API_URL=https://social.example.org MASTODON_ACCESS_TOKEN="$(random "$1")"
export DATABASE_URL="postgres://broker:$(random "$1")@db.example.org/broker?sslmode=verify-full"
export REDIS_URL="rediss://:$(random "$1")@redis.example.org:6380/0" BROKER_LOG_FORMAT=json
"$1" manage.py check --deploy --fail-level WARNING
