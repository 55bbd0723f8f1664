"""Reports: escaping, files, ids; and the page in a real browser."""

import html
import re

import numpy as np
import pandas as pd
import pytest
from browser_pages import seen_by_browser

from gpt_search import InputError
from gpt_search.analysis import figures, figures_study
from gpt_search.analysis.report import (
    Document,
    Facts,
    Picture,
    Section,
    Sentences,
    Table,
    Text,
    cell_text,
    escaped,
    to_folder,
    to_html,
    to_markdown,
)

EVIL = "<script>window.hacked=1</script>\"'><img src=https://example.com/x onerror=hacked=1>&amp;|`*_"


def picture(name: str) -> Picture:
    figure, ax = figures.new_figure(2.0)
    share = [0.5, 0.3]
    table = pd.DataFrame({"knob": [EVIL[:30], "$x^{2$ & <b>"], "importance": share, "low": share, "high": share})
    figures_study.importance_bars(table, ax)
    return Picture(name, f"caption {EVIL}", figure)


def document() -> Document:
    frame = pd.DataFrame(
        {
            EVIL: ["b10", "b9", EVIL, ""],
            "number": [3.0, np.nan, -1.5e-7, np.inf],
            "count": [10, 9, 100, 1],
            "there": [True, False, True, False],
        }
    )
    blocks = [
        Text(EVIL, "headline"),
        Text(EVIL, "warning"),
        Facts([(EVIL, EVIL)]),
        Sentences([EVIL]),
        picture("one"),
        picture("two"),
        Table("numbers", EVIL, frame),
    ]
    return Document(EVIL, EVIL, [Section(EVIL, blocks), Section("b", []), Section("c", [])])


PAGE = to_html(document())


def test_hostile_text_is_shown_and_never_markup():
    assert "<script>window.hacked" not in PAGE and "<img" not in PAGE
    assert PAGE.count("<script>") == 1 and PAGE.count("</script>") == 1
    assert PAGE.count(html.escape(EVIL, quote=False).replace('"', "&#34;").replace("'", "&#39;")) > 8


def test_the_page_refers_to_nothing_outside_itself():
    references = re.findall(r"""(?:\b(?:src|href|action|data)=|url\()["']?([^"')\s>]+)""", PAGE)
    escaped_text = {r for r in references if "example.com" in r}  # inside text that was escaped
    assert all(r.startswith(("#", "data:,")) for r in set(references) - escaped_text), references
    assert "@import" not in PAGE


def test_ids_of_figures_are_unique_and_references_find_them():
    ids = re.findall(r'\bid="([^"]+)"', PAGE)
    assert len(ids) == len(set(ids))
    wanted = set(re.findall(r'href="#([^"]+)"', PAGE)) | set(re.findall(r"url\(#([^)]+)\)", PAGE))
    assert wanted and wanted <= set(ids)


def test_markdown_shows_hostile_text_as_it_is_and_tables_keep_their_shape(tmp_path):
    text = to_markdown(document())
    assert "<script" not in re.sub(r"\\<", "", text)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 6 and len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1
    written = {p.name for p in to_folder(document(), tmp_path / "out")}
    assert written == {"report.md", "one.svg", "one.png", "two.svg", "two.png", "numbers.csv"}
    back = pd.read_csv(tmp_path / "out" / "numbers.csv")
    assert back["number"].tolist()[2:] == [-1.5e-7, np.inf] and back.columns[0] == EVIL
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        to_folder(document(), tmp_path / "file" / "below")


def test_a_long_table_is_cut_on_the_page_and_says_so(monkeypatch):
    monkeypatch.setattr("gpt_search.analysis.report.LONGEST_TABLE", 5)
    page = to_html(Document("t", "s", [Section("x", [Table("t", "many", pd.DataFrame({"a": range(9)}))])]))
    assert "the first 5 of 9 rows" in page and page.count("<tr>") == 6


@pytest.mark.parametrize(
    ("value", "text"),
    [(np.nan, ""), (None, ""), (np.inf, "inf"), (0.123456, "0.1235"), (np.bool_(True), "yes"), (12345678, "12345678")],
)
def test_cells(value, text):
    assert cell_text(value) == text
    assert escaped("a\n|b") == "a \\|b"


# -- in a browser ------------------------------------------------------------------------------------
def test_the_page_works_in_a_browser(tmp_path):
    seen = seen_by_browser(PAGE, tmp_path)
    assert seen["errors"] == [] and seen["requests"] == [] and not seen["hacked"]
    assert len(seen["figures"]) == 2
    for figure in seen["figures"]:
        assert figure["width"] > 300 and figure["height"] > 80 and figure["bars"] >= 2
    up, down, counts, texts = seen["sorted"]
    assert up == ["-1.5e-07", "3", "inf", ""] and down == ["inf", "3", "-1.5e-07", ""]
    assert counts == ["1", "9", "10", "100"]
    assert texts[-1] == "" and texts.index("b9") < texts.index("b10") and EVIL in texts


def test_figures_follow_a_dark_page(tmp_path):
    for name in ("light", "dark"):
        (tmp_path / name).mkdir()
    light = seen_by_browser(PAGE, tmp_path / "light")
    dark = seen_by_browser(PAGE, tmp_path / "dark", "--blink-settings=preferredColorScheme=0")
    assert light["page"] == "rgb(255, 255, 255)" and dark["page"] != light["page"]
    assert light["figures"][0]["ink"] != dark["figures"][0]["ink"]
