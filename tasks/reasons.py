"""Why an issue is not on offer, and why an attempt, an event or an action ended as it did.

The words of every reason are in the table WORDS below; their Japanese is in ``locale/ja``. Code carries a
:class:`Reason` and never compares or parses the words. A new reason is one member of :class:`ReasonCode` and one line
of WORDS; nothing else has to know it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.utils.translation import gettext, gettext_lazy
from django.utils.translation import gettext_noop as _

from broker_project.lib.errors import ActionRefused
from broker_project.lib.sentences import Words

Parameter = str | int | tuple[str, ...] | tuple[int, ...]


class ReasonCode(StrEnum):
    """Rows keep these values (``coded_reason``): a member may get other words, never another value."""

    # Whether an issue is on offer
    ON_OFFER = "on_offer"
    TAKEN = "taken"
    LABELLED = "labelled"
    PARKED = "parked"
    NO_ROLE = "no_role"
    NO_PRIORITY = "no_priority"
    NO_DELIVERABLES = "no_deliverables"
    BRANCH_REFUSED = "branch_refused"
    BASE_REFUSED = "base_refused"
    NO_PULL_REQUEST = "no_pull_request"
    REVIEWED = "reviewed"
    REVIEW_NOT_SEEN = "review_not_seen"
    REVIEW_NOT_DUE = "review_not_due"
    FOREIGN_AUTHOR = "foreign_author"
    EDITED = "edited"
    OTHER_ROLE = "other_role"
    BEHIND_PRIORITY = "behind_priority"
    CLOSED = "closed"
    REPOSITORY_OFF = "repository_off"
    GONE = "gone"
    # What GitHub said when the issue was to be assigned
    GITHUB_REFUSED = "github_refused"
    NO_BASE_BRANCH = "no_base_branch"
    # What became of an attempt
    ASSIGNED = "assigned"
    GIVEN_BACK = "given_back"
    SUPERSEDED = "superseded"
    LABELS_SUPERSEDED = "labels_superseded"
    RELEASED_BY = "released_by"
    PARKED_BY = "parked_by"
    NO_HEARTBEAT = "no_heartbeat"
    DIED_ASSIGNING = "died_assigning"
    LOST_ASSIGNING = "lost_assigning"
    CHECKED_IN_FAILED = "checked_in_failed"
    CLOSED_ON_GITHUB = "closed_on_github"
    REVIEW_COMMENTS = "review_comments"
    # Why an action was refused
    BEING_ASSIGNED = "being_assigned"
    ENDED_ALREADY = "ended_already"
    NOT_PARKED = "not_parked"
    PARKED_ALREADY = "parked_already"
    GITHUB_SILENT = "github_silent"
    NO_EDIT = "no_edit"
    EDITED_AGAIN = "edited_again"
    # Rows from before there were codes, and what agents and outside systems wrote themselves
    AS_WRITTEN = "as_written"


class BranchProblem(StrEnum):
    """Why a branch name is refused; the parameter ``problem``."""

    EMPTY = "empty"
    TOO_LONG = "too_long"
    UNPRINTABLE = "unprintable"
    ENDS = "ends"
    FORBIDDEN = "forbidden"
    RESERVED = "reserved"
    REFERENCE = "reference"
    SHELL = "shell"
    PROTECTED = "protected"
    OWN_BASE = "own_base"


WORDS: dict[ReasonCode, Words] = {
    ReasonCode.ON_OFFER: Words(_("on offer"), _("The next agent that asks and fits gets it.")),
    ReasonCode.TAKEN: Words(_("an agent has it"), _("Wait for its agent, or release the assignment.")),
    ReasonCode.LABELLED: Words(_("labelled %(label)s"), _("Take the label off if it should be handed out.")),
    ReasonCode.PARKED: Words(
        _("parked for a person"), _("Look at its attempts, mend the issue, then offer it again.")
    ),
    ReasonCode.NO_ROLE: Words(_("no role label"), _("Add the label of a role from the agents file.")),
    ReasonCode.NO_PRIORITY: Words(_("no priority label"), _("Add a priority label such as P1.")),
    ReasonCode.NO_DELIVERABLES: Words(
        _("no section 成果物"), _("Add a line beginning with ## 成果物 to the issue's text.")
    ),
    ReasonCode.BRANCH_REFUSED: Words(
        _("branch name refused: %(problem)s"), _("Write another branch name into the issue's text.")
    ),
    ReasonCode.BASE_REFUSED: Words(
        _("base branch refused: %(problem)s"), _("Write another base branch into the issue's text.")
    ),
    ReasonCode.NO_PULL_REQUEST: Words(
        _("no open pull request is linked"),
        _("Open a pull request whose text says “Closes” and the issue's number."),
    ),
    ReasonCode.REVIEWED: Words(
        _("reviewed; waits for a new commit or comment"),
        _("Nothing to do: it is offered again when the pull request changes."),
    ),
    ReasonCode.REVIEW_NOT_SEEN: Words(
        _("the wish for a review was not seen yet"), _("Nothing to do: the next poll sees it.")
    ),
    ReasonCode.REVIEW_NOT_DUE: Words(
        _("review due at %(time)s"), _("Nothing to do: reviews rest for a while first.")
    ),
    ReasonCode.FOREIGN_AUTHOR: Words(
        _("its author may not write to the repository"),
        _("Have somebody who may write open an issue of their own, or set BROKER_AUTHOR_GATE to anyone."),
    ),
    ReasonCode.EDITED: Words(
        _("edited after its approval; the difference waits for a look"),
        _("Look at the difference and approve it, or put the old text back on GitHub."),
    ),
    ReasonCode.OTHER_ROLE: Words(_("needs the role %(roles)s"), _("Start an agent with that role.")),
    ReasonCode.BEHIND_PRIORITY: Words(
        _("behind P%(priority)s"),
        _("Finish, park or relabel the issues of the better priority, or set the gate to assignable."),
    ),
    ReasonCode.CLOSED: Words(_("closed"), _("Open it again on GitHub if there is more to do.")),
    ReasonCode.REPOSITORY_OFF: Words(_("its repository is switched off"), _("Enable the repository.")),
    ReasonCode.GONE: Words(_("gone")),
    ReasonCode.GITHUB_REFUSED: Words(_("GitHub refused: %(detail)s")),
    ReasonCode.NO_BASE_BRANCH: Words(_("GitHub refused: there is no branch '%(branch)s'")),
    ReasonCode.ASSIGNED: Words(_("%(task_type)s as %(role)s on %(branch)s, attempt %(attempt)s")),
    ReasonCode.GIVEN_BACK: Words(_("given back by the agent")),
    ReasonCode.SUPERSEDED: Words(_("ended by the agent's next request")),
    ReasonCode.LABELS_SUPERSEDED: Words(_("labelled with the agent; ended by its next request")),
    ReasonCode.RELEASED_BY: Words(_("released by %(who)s")),
    ReasonCode.PARKED_BY: Words(_("parked by %(who)s")),
    ReasonCode.NO_HEARTBEAT: Words(_("no heartbeat since %(time)s")),
    ReasonCode.DIED_ASSIGNING: Words(_("died while being assigned")),
    ReasonCode.LOST_ASSIGNING: Words(_("taken for lost while being assigned")),
    ReasonCode.CHECKED_IN_FAILED: Words(_("checked in with an error")),
    ReasonCode.CLOSED_ON_GITHUB: Words(_("closed on GitHub")),
    ReasonCode.REVIEW_COMMENTS: Words(_("%(count)s review comments")),
    ReasonCode.BEING_ASSIGNED: Words(_("being assigned")),
    ReasonCode.ENDED_ALREADY: Words(_("ended already")),
    ReasonCode.NOT_PARKED: Words(_("not parked")),
    ReasonCode.PARKED_ALREADY: Words(_("parked already")),
    ReasonCode.GITHUB_SILENT: Words(_("GitHub does not answer")),
    ReasonCode.NO_EDIT: Words(_("no edit waits for a look")),
    ReasonCode.EDITED_AGAIN: Words(_("edited again meanwhile; look at the new difference")),
    ReasonCode.AS_WRITTEN: Words("%(text)s"),
}
PROBLEM_WORDS: dict[BranchProblem, str] = {
    BranchProblem.EMPTY: _("empty"),
    BranchProblem.TOO_LONG: _("too long"),
    BranchProblem.UNPRINTABLE: _("spaces, control or hidden characters"),
    BranchProblem.ENDS: _("begins or ends with a forbidden character"),
    BranchProblem.FORBIDDEN: _("characters that git forbids"),
    BranchProblem.RESERVED: _("a name that git reserves"),
    BranchProblem.REFERENCE: _("looks like a reference or a commit"),
    BranchProblem.SHELL: _("characters that a shell would act on"),
    BranchProblem.PROTECTED: _("it is a protected branch"),
    BranchProblem.OWN_BASE: _("it is its own base branch"),
}


@dataclass(frozen=True)
class Reason:
    """A code and what it speaks of. Two reasons are equal if both are."""

    code: ReasonCode
    parameters: tuple[tuple[str, Parameter], ...] = ()

    @classmethod
    def of(cls, code: ReasonCode, **parameters: Parameter) -> Reason:
        return cls(code, tuple(sorted(parameters.items())))

    @classmethod
    def as_written(cls, text: str) -> Reason:
        """A text that came from outside, or from before there were codes: shown as it is in every language."""
        return cls.of(ReasonCode.AS_WRITTEN, text=text)

    @classmethod
    def from_row(cls, text: str, coded: Any) -> Reason | None:
        """What a row keeps; None without a text. The text stands in for a code that is missing or unknown."""
        if not text:
            return None
        try:
            given = dict(coded)
            reason = cls.of(
                ReasonCode(given.pop("code")),
                **{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()},
            )
            str(reason)
        except (TypeError, KeyError, ValueError):
            return cls.as_written(text)
        return reason

    def as_json(self) -> dict[str, Any] | None:
        """For a row's ``coded_reason``; None if the text beside it says everything."""
        if self.code is ReasonCode.AS_WRITTEN:
            return None
        return {"code": str(self.code), **dict(self.parameters)}

    def __str__(self) -> str:
        """The sentence in English: for the agent API, Redis, logs and the text beside a code in a row."""
        return self._say(lambda words: words)

    @property
    def sentence(self) -> str:
        """The sentence in the reader's language."""
        return self._say(gettext)

    @property
    def advice(self) -> str:
        """What a person can do about it, in the reader's language; may be empty."""
        words = WORDS[self.code].advice
        return gettext(words) if words else ""

    def _say(self, translate: Callable[[str], str]) -> str:
        shown = {name: _shown(name, value, translate) for name, value in self.parameters}
        words = WORDS[self.code].sentence
        return translate(words) % shown


def refused(code: ReasonCode) -> ActionRefused:
    """For a service to raise: why it leaves a row alone."""
    return ActionRefused(gettext_lazy(WORDS[code].sentence), code=code)


def _shown(name: str, value: Parameter, translate: Callable[[str], str]) -> str:
    if name == "problem":
        return translate(PROBLEM_WORDS[BranchProblem(str(value))])
    if name == "task_type":
        return translate(str(value))
    if isinstance(value, tuple):
        numbers = [f"#{item}" for item in value if isinstance(item, int)]
        return ", ".join(numbers) if numbers else translate(_(" or ")).join(map(str, value))
    return str(value)
