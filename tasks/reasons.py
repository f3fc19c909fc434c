"""The rules' own words in the reader's language, and what to do about them."""

from __future__ import annotations

import re

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, gettext_noop

# Reasons of :func:`tasks.lifecycle.classify`, and what helps.
ADVICE: dict[str, Promise] = {
    gettext_noop("an agent has it"): gettext_lazy("Wait for its agent, or release the assignment."),
    gettext_noop("parked for a person"): gettext_lazy(
        "Look at its attempts, mend the issue, then offer it again."
    ),
    gettext_noop("no role label"): gettext_lazy("Add the label of a role from the agents file."),
    gettext_noop("no priority label"): gettext_lazy("Add a priority label such as P1."),
    gettext_noop("no section 成果物"): gettext_lazy(
        "Add a line beginning with ## 成果物 to the issue's text."
    ),
    gettext_noop("no open pull request is linked"): gettext_lazy(
        "Open a pull request whose text says “Closes” and the issue's number."
    ),
    gettext_noop("reviewed; waits for a new commit or comment"): gettext_lazy(
        "Nothing to do: it is offered again when the pull request changes."
    ),
    gettext_noop("the wish for a review was not seen yet"): gettext_lazy(
        "Nothing to do: the next poll sees it."
    ),
    gettext_noop("its author may not write to the repository"): gettext_lazy(
        "Have somebody who may write open an issue of their own, or set BROKER_AUTHOR_GATE to anyone."
    ),
    gettext_noop("edited after its approval; the difference waits for a look"): gettext_lazy(
        "Look at the difference and approve it, or put the old text back on GitHub."
    ),
    gettext_noop("on offer"): gettext_lazy("The next agent that asks and fits gets it."),
    gettext_noop("closed"): gettext_lazy("Open it again on GitHub if there is more to do."),
    gettext_noop("its repository is switched off"): gettext_lazy("Enable the repository."),
}
# Words with something in them: expression, sentence, advice.
PATTERNS: list[tuple[re.Pattern[str], str, Promise]] = [
    (
        re.compile(r"labelled (?P<label>.+)"),
        gettext_noop("labelled %(label)s"),
        gettext_lazy("Take the label off if it should be handed out."),
    ),
    (
        re.compile(r"needs the role (?P<roles>.+)"),
        gettext_noop("needs the role %(roles)s"),
        gettext_lazy("Start an agent with that role."),
    ),
    (
        re.compile(r"review due at (?P<time>.+)"),
        gettext_noop("review due at %(time)s"),
        gettext_lazy("Nothing to do: reviews rest for a while first."),
    ),
    (
        re.compile(r"behind P(?P<priority>.+)"),
        gettext_noop("behind P%(priority)s"),
        gettext_lazy(
            "Finish, park or relabel the issues of the better priority, or set the gate to assignable."
        ),
    ),
    (
        re.compile(r"branch name refused: (?P<why>.+)"),
        gettext_noop("branch name refused: %(why)s"),
        gettext_lazy("Write another branch name into the issue's text."),
    ),
    (
        re.compile(r"base branch refused: (?P<why>.+)"),
        gettext_noop("base branch refused: %(why)s"),
        gettext_lazy("Write another base branch into the issue's text."),
    ),
]
# Why a branch name is refused.
BRANCH_PROBLEMS = frozenset(
    (
        gettext_noop("empty"),
        gettext_noop("too long"),
        gettext_noop("spaces or control characters"),
        gettext_noop("begins or ends with a forbidden character"),
        gettext_noop("characters that git forbids"),
        gettext_noop("a name that git reserves"),
        gettext_noop("looks like a reference or a commit"),
        gettext_noop("characters that a shell would act on"),
        gettext_noop("it is a protected branch"),
        gettext_noop("it is its own base branch"),
    )
)
# What events are called, and then the words of their statuses.
EVENT_KINDS = (
    gettext_noop("opened"),
    gettext_noop("reopened"),
    gettext_noop("closed"),
    gettext_noop("parked"),
    gettext_noop("unparked"),
    gettext_noop("offered again"),
    gettext_noop("review wanted"),
    gettext_noop("review-done"),
    gettext_noop("assigned"),
    gettext_noop("completed"),
    gettext_noop("failed"),
    gettext_noop("released"),
    gettext_noop("lost"),
    gettext_noop("aborted"),
    gettext_noop("cancelled"),
    gettext_noop("fix wanted"),
    gettext_noop("refused"),
    gettext_noop("labels given up"),
    gettext_noop("edited"),
    gettext_noop("edit taken back"),
    gettext_noop("approved"),
    gettext_noop("pull request opened"),
    gettext_noop("pull request reopened"),
)
STATUS_WORDS = (
    gettext_noop("open"),
    gettext_noop("processing"),
    gettext_noop("needs-review"),
    gettext_noop("error"),
)


def reason_in_words(reason: str) -> str:
    if reason in ADVICE:
        return _(reason)
    for expression, sentence, _advice in PATTERNS:
        if match := expression.fullmatch(reason):
            found = {
                name: _(text) if text in BRANCH_PROBLEMS else text for name, text in match.groupdict().items()
            }
            return _(sentence) % found
    return reason


def advice_for(reason: str) -> str:
    """What a person can do about it; empty if we do not know."""
    if reason in ADVICE:
        return str(ADVICE[reason])
    for expression, _sentence, advice in PATTERNS:
        if expression.fullmatch(reason):
            return str(advice)
    return ""
