"""Every HTTP status is one error, and each error says whether to come back and whether it may have
happened.
"""

from __future__ import annotations

import pytest

from broker_project.lib import errors
from broker_project.lib.errors import OutsideError, error_for_status


@pytest.mark.parametrize(
    ("status", "kind", "is_permanent", "may_have_happened"),
    [
        (400, errors.Rejected, True, False),
        (401, errors.Unauthorised, True, False),
        (403, errors.Unauthorised, True, False),
        (404, errors.Missing, True, False),
        (408, errors.TimedOut, False, True),
        (409, errors.Conflict, True, False),
        (410, errors.Missing, True, False),
        (412, errors.Conflict, True, False),
        (413, errors.TooLarge, True, False),
        (418, errors.Rejected, True, False),
        (422, errors.Rejected, True, False),
        (429, errors.RateLimited, False, False),
        (500, errors.ServerFault, False, True),
        (502, errors.ServerFault, False, True),
        (503, errors.ServerFault, False, True),
        (529, errors.ServerFault, False, True),
    ],
)
def test_the_error_of_a_status(
    status: int, kind: type[OutsideError], is_permanent: bool, may_have_happened: bool
) -> None:
    error = error_for_status("GitHub", status, "said no", 12.5)
    assert type(error) is kind
    assert (error.is_permanent, error.may_have_happened) == (is_permanent, may_have_happened)
    assert (error.system, error.status, error.retry_after_seconds) == ("GitHub", status, 12.5)
    assert str(error) == f"GitHub: HTTP {status}: said no"


def test_the_tree_is_what_its_drawing_says() -> None:
    drawn = {
        word
        for line in (errors.__doc__ or "").splitlines()
        if "──" in line
        for word in [line.split("──")[1].split()[0]]
    }
    classes = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, OutsideError) and value is not OutsideError
    }
    assert drawn == classes
    for name in classes - {"Temporary", "Permanent"}:
        kind = getattr(errors, name)
        assert issubclass(kind, errors.Permanent) != issubclass(kind, errors.Temporary)
        assert kind("x", "y").is_permanent == issubclass(kind, errors.Permanent)


def test_what_may_have_happened_can_be_told_by_the_caller() -> None:
    assert errors.Unreachable("x", "y").may_have_happened
    assert not errors.Unreachable("x", "refused", may_have_happened=False).may_have_happened
    assert errors.Rejected("x", "y", may_have_happened=True).may_have_happened
    assert str(error_for_status("x", 500)) == "x: HTTP 500"
