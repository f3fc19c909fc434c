"""Which parameters API-Football accepts, and how it refuses others."""

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError


class Problem(Exception):
    """A refusal: what goes into `errors`."""

    def __init__(self, **errors: str) -> None:
        super().__init__(str(errors))
        self.errors = errors


def season_bounds(season: int) -> tuple[datetime, datetime]:
    if not 2021 <= season <= 2100:
        raise Problem(season="The Season field must contain a valid year.")
    return datetime(season, 7, 1, tzinfo=UTC), datetime(season + 1, 7, 1, tzinfo=UTC)


def refuse_others(query: dict[str, str], *known: str) -> None:
    unknown = {key: f"The {key.title()} field do not exist." for key in query if key not in known}
    if unknown:
        raise Problem(**unknown)


def require_any(query: dict[str, str]) -> None:
    if not query:
        raise Problem(required="At least one parameter is required.")


def whole(query: dict[str, str], key: str) -> int | None:
    text = query.get(key)
    if text is None:
        return None
    if not text.isdigit() or len(text) > 9:
        raise Problem(**{key: f"The {key.title()} field must contain an integer."})
    return int(text)


def required(query: dict[str, str], key: str) -> int:
    value = whole(query, key)
    if value is None:
        raise Problem(**{key: f"The {key.title()} field is required."})
    return value


def day_of(query: dict[str, str], key: str) -> date:
    try:
        return datetime.strptime(query[key], "%Y-%m-%d").date()
    except ValueError:
        raise Problem(**{key: f"The {key.title()} field must contain a valid date (YYYY-MM-DD)."}) from None


def midnight(query: dict[str, str], key: str, zone: ZoneInfo, days_later: int = 0) -> datetime:
    return datetime.combine(day_of(query, key) + timedelta(days=days_later), time.min, zone)


def zone_of(query: dict[str, str]) -> ZoneInfo:
    try:
        return ZoneInfo(query.get("timezone", "UTC"))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise Problem(timezone="The Timezone field must contain a valid timezone.") from None


def refuse_half_filters(query: dict[str, str], *, has_other_filter: bool, is_pair: bool) -> None:
    """The service refuses filters that say too little by themselves, each with its own sentence."""
    has_season = whole(query, "season") is not None
    is_of_one = whole(query, "league") is not None or whole(query, "team") is not None
    if is_of_one and not has_season and not has_other_filter:
        raise Problem(season="The Season field is required.")
    if ("from" in query) != ("to" in query):
        raise Problem(**{"from": "The From and To fields need each other."})
    if has_season and not is_of_one and "date" not in query and not is_pair:
        raise Problem(season="The Season field need another parameter.")
