"""What a Mastodon instance says about itself."""

from typing import Any

VERSION = "4.5.2"
TITLE = "Sandbox Mastodon"
DESCRIPTION = "A stand-in; nothing here is public."
NODEINFO_SCHEMA = "http://nodeinfo.diaspora.software/ns/schema/2.0"


def instance_v1(
    domain: str, configuration: dict[str, Any], account: dict[str, Any], status_count: int
) -> dict[str, Any]:
    return {
        "uri": domain,
        "title": TITLE,
        "short_description": DESCRIPTION,
        "description": DESCRIPTION,
        "email": "",
        "version": VERSION,
        "urls": {},
        "stats": {"user_count": 1, "status_count": status_count, "domain_count": 1},
        "languages": ["ja"],
        "registrations": False,
        "approval_required": False,
        "invites_enabled": False,
        "configuration": configuration,
        "contact_account": account,
        "rules": [],
    }


def instance_v2(domain: str, configuration: dict[str, Any], account: dict[str, Any]) -> dict[str, Any]:
    return {
        "domain": domain,
        "title": TITLE,
        "version": VERSION,
        "source_url": "https://github.com/mastodon/mastodon",
        "description": DESCRIPTION,
        "usage": {"users": {"active_month": 1}},
        "languages": ["ja"],
        "configuration": configuration,
        "registrations": {"enabled": False, "approval_required": False, "message": None},
        "api_versions": {"mastodon": 7},
        "contact": {"email": "", "account": account},
        "rules": [],
    }


def nodeinfo(status_count: int) -> dict[str, Any]:
    return {
        "version": "2.0",
        "software": {"name": "mastodon", "version": VERSION},
        "protocols": ["activitypub"],
        "services": {"outbound": [], "inbound": []},
        "usage": {"users": {"total": 1}, "localPosts": status_count},
        "openRegistrations": False,
        "metadata": {},
    }
