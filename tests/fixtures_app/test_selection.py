from __future__ import annotations

import datetime as dt

import pytest

from fixtures.selection import Candidate, Rank, Ranking, in_order, player_key, rank_match, team_key

KICKOFF = dt.datetime(2026, 1, 4, 12, 0, tzinfo=dt.UTC)


def candidate(
    home: str = "Burnley",
    away: str = "Fulham",
    league: int = 39,
    players: tuple[str, ...] = (),
    fixture_id: str = "1",
    minutes: int = 0,
) -> Candidate:
    kickoff_at = KICKOFF + dt.timedelta(minutes=minutes)
    return Candidate(fixture_id, league, home, away, kickoff_at, players)


@pytest.mark.parametrize(
    ("home", "away", "players", "rank", "because"),
    [
        ("Manchester City", "Fulham", (), "S", "Manchester City"),
        ("Arsenal", "Manchester City", (), "S", "Manchester City"),
        ("Arsenal", "Fulham", (), "A", "Arsenal"),
        ("Burnley", "Leeds", (), "A", "Leeds"),
        ("Brighton & Hove Albion", "Fulham", (), "A", "Brighton & Hove Albion"),
        ("Tottenham Hotspur", "Fulham", (), "A", "Tottenham Hotspur"),
        ("FC Barcelona", "Elche", (), "A", "FC Barcelona"),
        ("Atlético Madrid", "Elche", (), "A", "Atlético Madrid"),
        ("Real Sociedad", "Elche", (), "A", "Real Sociedad"),
        ("Espanyol", "Real Betis", (), "", ""),
        ("Burnley", "Fulham", ("MF 8", "K. Mitoma"), "A", "K. Mitoma"),
        ("Burnley", "Fulham", ("Kaoru Mitoma",), "A", "Kaoru Mitoma"),
        ("Burnley", "Fulham", ("Takumi Minamino",), "A", "Takumi Minamino"),
        ("Burnley", "Fulham", ("J. Mitoma",), "", ""),
        ("Burnley", "Fulham", (), "", ""),
    ],
)
def test_rank(home: str, away: str, players: tuple[str, ...], rank: str, because: str) -> None:
    ranked = rank_match(candidate(home, away, players=players), Ranking())
    assert (ranked.rank, ranked.because) == (Rank(rank), because)


def test_the_lists_are_the_operators() -> None:
    ranking = Ranking(rank_s=("Fulham",), rank_a=(), players=())
    assert rank_match(candidate(), ranking).rank is Rank.S
    assert rank_match(candidate("Manchester City", "Elche"), ranking).rank is Rank.NONE


def test_order_is_rank_then_competition_then_kickoff() -> None:
    ranking = Ranking()
    given = [
        candidate(fixture_id="late", minutes=30),
        candidate(fixture_id="early"),
        candidate(fixture_id="unlisted", league=999),
        candidate("Arsenal", fixture_id="A in the EFL", league=48),
        candidate("Arsenal", fixture_id="A in the CL", league=2),
        candidate("Manchester City", fixture_id="S in the EFL", league=48),
        *(candidate(fixture_id=f"league {league}", league=league) for league in (48, 45, 143, 140, 32, 2)),
    ]
    ordered = in_order([rank_match(entry, ranking) for entry in given], ranking)
    assert [entry.candidate.fixture_id for entry in ordered] == [
        "S in the EFL",
        "A in the CL",
        "A in the EFL",
        "league 2",
        "league 32",
        "league 140",
        "early",
        "late",
        "league 143",
        "league 45",
        "league 48",
        "unlisted",
    ]


def test_names_without_letters_match_nothing() -> None:
    assert team_key("三笘") == ""
    assert player_key("") == ""
    assert rank_match(candidate(players=("三笘薫",)), Ranking(players=("K. Mitoma",))).rank is Rank.NONE
