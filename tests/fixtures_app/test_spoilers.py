from __future__ import annotations

import pytest

from fixtures.guide.spoilers import spoiler_in

GIVES_AWAY = [
    "Arsenalは2-1で試合を終えた。",
    "スコアは３－０だった。",
    "2対1の熱戦。",
    "2 – 2 と接戦。",
    "前半を1:0で折り返した。",
    "アーセナルが勝利を収めた一戦。",
    "後半に逆転勝ちを飾った。",
    "チェルシーは惜しくも敗れた。",
    "引き分けに終わった。",
    "決勝点はコーナーキックから。",
    "ハットトリックの活躍。",
    "主将は前半で退場となった。",
    "Arsenal won the derby.",
    "It finished with a full-time score to remember.",
    "He scored twice.",
]
HARMLESS = [
    "4-2-3-1の布陣で臨むArsenalは、左右の幅を使いたい。",
    "2026年3月11日 21:00キックオフ。",
    "2026-03-11に行われる一戦。",
    "序盤の主導権争いとセットプレーの守り方が見どころとなる。",
    "勝てば首位に近づく重要な一戦。",
    "3-4-2-1と4-3-3がぶつかる。",
    "得点力が魅力のチームだ。",
    "",
]


@pytest.mark.parametrize("text", GIVES_AWAY)
def test_words_of_a_result_are_found(text: str) -> None:
    assert spoiler_in(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_a_plain_preview_passes(text: str) -> None:
    assert spoiler_in(text) is None
