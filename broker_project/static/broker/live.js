// Renews every element with data-live from the same page, without a jump, and rests in hidden tabs.
"use strict";
(() => {
  const regions = () => [...document.querySelectorAll("[data-live][id]")];
  const first = regions()[0];
  if (!first) return;
  const seconds = Math.max(2, Number(first.dataset.live) || 5);
  const note = document.getElementById("live-note");
  let paused = false;
  let timer = 0;
  let busy = false;

  const focusables = (root) => [...root.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")];

  function replace(old, fresh) {
    if (old.innerHTML === fresh.innerHTML) return;
    const place = focusables(old).indexOf(document.activeElement);
    const open = [...old.querySelectorAll("details")].map((element) => element.open);
    const scrolled = [...old.querySelectorAll(".wide")].map((element) => element.scrollLeft);
    old.replaceChildren(...fresh.childNodes);
    old.querySelectorAll("details").forEach((element, index) => { element.open = open[index] || element.open; });
    old.querySelectorAll(".wide").forEach((element, index) => { element.scrollLeft = scrolled[index] || 0; });
    if (place >= 0) focusables(old)[place]?.focus({ preventScroll: true });
  }

  async function renew() {
    if (busy || paused || document.hidden) return;
    // Somebody is marking text to copy it.
    const selection = document.getSelection();
    if (selection && !selection.isCollapsed) return;
    busy = true;
    try {
      const answer = await fetch(location.href, { headers: { "X-Broker-Refresh": "1" }, credentials: "same-origin", cache: "no-store" });
      if (answer.redirected) { location.reload(); return; }
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const region of regions()) {
        const fresh = page.getElementById(region.id);
        if (fresh) replace(region, fresh);
      }
      note?.classList.remove("stale");
      say("");
    } catch {
      note?.classList.add("stale");
      say(note?.dataset.stale || "");
    } finally {
      busy = false;
    }
  }

  let words = null;
  function say(text) { if (words) words.textContent = text; }

  if (note) {
    words = document.createElement("span");
    words.setAttribute("role", "status");
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = note.dataset.pause;
    button.addEventListener("click", () => {
      paused = !paused;
      button.textContent = paused ? note.dataset.resume : note.dataset.pause;
      note.classList.toggle("paused", paused);
      if (!paused) renew();
    });
    note.append(words, button);
  }
  function tick() {
    clearInterval(timer);
    if (!document.hidden) timer = setInterval(renew, seconds * 1000);
  }
  document.addEventListener("visibilitychange", () => { tick(); renew(); });
  tick();
})();
