"""Django's settings, all derived from :mod:`broker_project.lib.config.loader`."""

from __future__ import annotations

import sys
from datetime import timedelta

import django_stubs_ext
from django.utils.translation import gettext_lazy as _

from broker_project.lib.config import loader as config_module
from broker_project.lib.environment import ConfigError
from broker_project.lib.logs import logging_settings, redact_uncaught
from broker_project.lib.redaction import configure_redaction
from broker_project.lib.redis.django_caches import location
from broker_project.lib.redis.embedded_server import embedded_url
from broker_project.lib.redis.keys import SESSION
from broker_project.lib.redis.keyspace import Keyspace

try:
    BROKER = config_module.load()
except ConfigError as error:
    # One sentence and a non-zero exit for every command and server, no traceback.
    sys.exit(f"Broker cannot start: {error}")

# Makes generic notation like ModelAdmin[Item], which the type checker wants, work at run time.
django_stubs_ext.monkeypatch()
configure_redaction(BROKER.secret_values())
redact_uncaught()

BASE_DIR = config_module.BASE_DIR
SECRET_KEY = BROKER.secret_key
DEBUG = BROKER.debug
ALLOWED_HOSTS = list(BROKER.allowed_hosts)
CSRF_TRUSTED_ORIGINS = list(BROKER.csrf_trusted_origins)

INSTALLED_APPS = [
    "broker_project.apps.BrokerAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "ninja",
    "axes",
    "django_otp",
    "django_otp.plugins.otp_totp",
    "django_otp.plugins.otp_static",
    "broker_project.apps.BrokerConfig",  # before django_q: our `qcluster` adds to its own
    "django_q",
    "tasks",
    "feeds",
    "fixtures",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "broker_project.console.middleware.ContentSecurityPolicy",
    "broker_project.console.middleware.ProblemsAreJson",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "axes.middleware.AxesMiddleware",
]
if BROKER.access.second_factor != "off":
    _after = MIDDLEWARE.index("django.contrib.auth.middleware.AuthenticationMiddleware") + 1
    MIDDLEWARE[_after:_after] = [
        "django_otp.middleware.OTPMiddleware",
        "broker_project.people.second_factor.middleware.SecondFactorMiddleware",
    ]

ROOT_URLCONF = "broker_project.urls"
ASGI_APPLICATION = "broker_project.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "broker_project.console.context.broker",
            ]
        },
    }
]

DATABASES = {"default": BROKER.database}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# Redis. "keys" is for the keys of the registry (text in, text out); "default" and "sessions" are Django caches.
REDIS_URL = BROKER.redis_url or embedded_url(BROKER.var)
BROKER_KEYSPACE = Keyspace(BROKER.redis_names)
_POOL = {"socket_connect_timeout": 3, "socket_timeout": 5, "health_check_interval": 30}


def _cache(prefix: str, alias: str, **pool: object) -> dict[str, object]:
    return {
        "BACKEND": "django_redis.cache.RedisCache",
        # A list: django-redis splits a string at commas.
        "LOCATION": [location(REDIS_URL, alias)],
        "KEY_PREFIX": f"{BROKER.redis_names.namespace}:{prefix}",
        "KEY_FUNCTION": "broker_project.lib.redis.django_caches.make_key",
        "REVERSE_KEY_FUNCTION": "broker_project.lib.redis.django_caches.reverse_key",
        "OPTIONS": {
            "SERIALIZER": "broker_project.lib.redis.django_caches.SignedPickle",
            "CONNECTION_POOL_KWARGS": {**_POOL, **pool},
        },
    }


CACHES = {
    "default": _cache("cache", "default"),
    "sessions": _cache("session", "sessions"),
    "keys": _cache("cache", "keys", decode_responses=True),
}
DJANGO_REDIS_CONNECTION_FACTORY = "broker_project.lib.redis.django_caches.CacheConnections"
SESSION_ENGINE = "broker_project.people.sessions"
SESSION_CACHE_ALIAS = "sessions"
SESSION_COOKIE_AGE = BROKER_KEYSPACE.ttl_seconds(SESSION)

# django-q2 is the clock of the pollers: rows in our own tables are the queue.
Q_CLUSTER = {
    "name": BROKER.redis_names.namespace,
    "label": "Pollers",
    "orm": "default",
    "broker_class": "broker_project.ops.clock.queue.ClockQueue",
    "workers": 3,
    "recycle": 200,
    "timeout": 900,
    "retry": 1800,
    "max_attempts": 1,
    "ack_failures": True,
    "catch_up": False,
    "poll": 0.5,
    "queue_limit": 20,
    # Runs are in our own table. django-q2 would store unsigned pickles and read them at every save.
    "save_limit": -1,
    "bulk": 1,
}

LANGUAGE_CODE = "ja"
LANGUAGES = [("ja", _("Japanese")), ("en", _("English"))]
LOCALE_PATHS = [BASE_DIR / "locale"]
USE_I18N = True
FORMAT_MODULE_PATH = "broker_project.console.formats"
TIME_ZONE = "Asia/Tokyo"
USE_TZ = True

STATIC_URL = "/static/"
WHITENOISE_USE_FINDERS = True
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", "django.contrib.auth.backends.ModelBackend"]
LOGIN_URL = "/admin/login/"
LOGIN_REDIRECT_URL = "/status/"

# The lock is on name and address together: nobody can lock others out by failing with their names.
AXES_FAILURE_LIMIT = BROKER.access.login_failures
AXES_COOLOFF_TIME = timedelta(minutes=BROKER.access.login_lock_minutes)
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_CLIENT_IP_CALLABLE = "broker_project.people.log_in.client_address"
AXES_LOCKOUT_CALLABLE = "broker_project.people.log_in.locked_out"
AXES_RESET_ON_SUCCESS = True
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False
AXES_DISABLE_ACCESS_LOG = True
AXES_ENABLE_ADMIN = False  # our own page: see people/admin.py
AXES_VERBOSE = False
OTP_TOTP_ISSUER = "Broker"

# On a public host, behind TLS, everything is HTTPS; on loopback there is no certificate.
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = LANGUAGE_COOKIE_SECURE = BROKER.is_public
CSRF_COOKIE_HTTPONLY = LANGUAGE_COOKIE_HTTPONLY = True
CSRF_COOKIE_SAMESITE = LANGUAGE_COOKIE_SAMESITE = "Lax"
SECURE_SSL_REDIRECT = BROKER.is_public
SECURE_REDIRECT_EXEMPT = [r"^health$", r"^healthz$", r"^readyz$", r"^metrics$"]
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if BROKER.is_public else None
SECURE_HSTS_SECONDS = 31_536_000 if BROKER.is_public else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = BROKER.is_public
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
DEFAULT_EXCEPTION_REPORTER = "broker_project.console.debug_page.RedactedReport"
DATA_UPLOAD_MAX_MEMORY_SIZE = 2 * 1024 * 1024

LOGGING_CONFIG = "logging.config.dictConfig"
LOGGING = logging_settings(as_json=BROKER.log_format == "json", level=BROKER.log_level)
NINJA_PAGINATION_MAX_LIMIT = 1000
