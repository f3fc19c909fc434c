"""Which labels of a snapshot are believed.

GitHub's times have whole seconds, and a snapshot may have been taken while we were changing labels ourselves. So
changes that GitHub has not taken yet are laid over what it says; labels that we changed after a listing was asked for
are kept; and a webhook that arrives within a minute of our own change only adds or removes the label it is about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tasks.github.label_marks import labels_changed_since
from tasks.models import Assignment, Issue, PullRequest, Repository
from tasks.services.labels import LabelChanges, changed_labels, label_changes

GITHUB = "github"
OWN_CHANGE_SECONDS = 60  # how long webhooks of our own change may be on their way


@dataclass(frozen=True)
class LabelEvent:
    """What a webhook is about: one label was added or removed."""

    name: str
    is_added: bool


@dataclass(frozen=True)
class SnapshotSource:
    """Where snapshots come from: a listing asked for at ``asked_at``, or else a webhook."""

    now: datetime
    asked_at: datetime | None = None
    label_event: LabelEvent | None = None
    who: str = GITHUB


@dataclass(frozen=True)
class LabelView:
    """What is known of labels that a snapshot may show wrongly."""

    source: SnapshotSource
    ours: set[int]  # changed by us so lately that the snapshot may not show it
    pending: dict[int, list[LabelChanges]]  # changes that GitHub has not taken yet

    def believe(self, number: int, known: Sequence[str], told: Sequence[str]) -> list[str]:
        if number in self.ours:
            event = self.source.label_event
            if event is None:
                return list(known)
            rest = [name for name in known if name != event.name]
            return [*rest, event.name] if event.is_added else rest
        labels = list(told)
        for changes in self.pending.get(number, ()):
            labels = changed_labels(labels, changes)
        return labels


def view_labels(
    repository: Repository,
    rows: Mapping[int, Issue] | Mapping[int, PullRequest],
    given: Mapping[int, Issue] | Mapping[int, PullRequest],
    source: SnapshotSource,
) -> LabelView:
    numbers = [n for n, new in given.items() if n in rows and rows[n].labels != new.labels]
    if not numbers:
        return LabelView(source, set(), {})
    since = source.asked_at or source.now - timedelta(seconds=OWN_CHANGE_SECONDS)
    pending: dict[int, list[LabelChanges]] = {}
    due = Assignment.objects.filter(repository=repository, number__in=numbers, labels_due__isnull=False)
    for number, changes in due.order_by("id").values_list("number", "labels_due"):
        pending.setdefault(number, []).append(changes or label_changes())
    return LabelView(source, labels_changed_since(repository.pk, numbers, since), pending)
