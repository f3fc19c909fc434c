from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import pytest

from fixtures.selection import Rank, Ranking, player_key, rank_match, sort_key, team_key

KICKOFF = dt.datetime(2026, 1, 4, 12, 0, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Candidate:
    home_name: str = "Burnley"
    away_name: str = "Fulham"
    fixture_id: str = "1"
    league_id: int = 39
    minutes: int = 0

    @property
    def kickoff_at(self) -> dt.datetime:
        return KICKOFF + dt.timedelta(minutes=self.minutes)


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
    ranked = rank_match(Candidate(home, away), Ranking(), players)
    assert (ranked.rank, ranked.because) == (Rank(rank), because)


def test_the_lists_are_the_operators() -> None:
    ranking = Ranking(rank_s=("Fulham",), rank_a=(), players=())
    assert rank_match(Candidate(), ranking).rank is Rank.S
    assert rank_match(Candidate("Manchester City", "Elche"), ranking).rank is Rank.NONE


def test_order_is_rank_then_competition_then_kickoff() -> None:
    ranking = Ranking()
    given = [
        Candidate(fixture_id="late", minutes=30),
        Candidate(fixture_id="early"),
        Candidate(fixture_id="unlisted", league_id=999),
        Candidate("Arsenal", fixture_id="A in the EFL", league_id=48),
        Candidate("Arsenal", fixture_id="A in the CL", league_id=2),
        Candidate("Manchester City", fixture_id="S in the EFL", league_id=48),
        *(Candidate(fixture_id=f"league {league}", league_id=league) for league in (48, 45, 143, 140, 32, 2)),
    ]
    given.sort(key=lambda match: sort_key(match, rank_match(match, ranking).rank, ranking))
    assert [match.fixture_id for match in given] == [
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
    assert rank_match(Candidate(), Ranking(players=("K. Mitoma",)), ["三笘薫"]).rank is Rank.NONE
