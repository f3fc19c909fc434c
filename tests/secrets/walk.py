"""Every page that a superuser can reach by links, a few of each kind."""

from __future__ import annotations

import re
from collections import Counter, deque
from urllib.parse import urljoin, urlsplit

import httpx

EACH_KIND = 2
MAX_PAGES = 110
START = ("/admin/", "/status/", "/api/v1/docs", "/api/v1/openapi.json", "/metrics", "/readyz", "/health")
LEFT_OUT = re.compile(r"/logout|/jsi18n|^/static/|/i18n/")


def log_in(client: httpx.Client, name: str, password: str) -> httpx.Response:
    client.get("/admin/login/")
    data = {"username": name, "password": password, "csrfmiddlewaretoken": client.cookies["csrftoken"]}
    return client.post("/admin/login/?next=/status/", data=data, headers={"Referer": str(client.base_url)})


def walk(client: httpx.Client) -> dict[str, str]:
    """The text of each page by its address."""
    waiting, pages, kinds = deque(START), dict[str, str](), Counter[str]()
    while waiting and len(pages) < MAX_PAGES:
        address = waiting.popleft()
        if address in pages:
            continue
        answer = client.get(address, follow_redirects=True)
        pages[address] = answer.text + "".join(f"\n{name}: {value}" for name, value in answer.headers.items())
        if "html" not in answer.headers.get("content-type", ""):
            continue
        for link in re.findall(r'href="([^"#]+)"', answer.text):
            target = urljoin(address, link.replace("&amp;", "&"))
            parts = urlsplit(target)
            kind = re.sub(r"\d+", "0", parts.path) + "?" + re.sub(r"=[^&]*", "", parts.query)
            if parts.netloc or LEFT_OUT.search(parts.path) or kinds[kind] >= EACH_KIND:
                continue
            kinds[kind] += 1
            waiting.append(target)
    return pages
