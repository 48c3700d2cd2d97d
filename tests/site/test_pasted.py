"""The box for a pasted message: which pages it shows, which texts it does not know, and that nothing leaves it."""

import json
import re

import pytest
from scratch import ROOT

from tools.measure.browser import axe
from zero_or_nan.explain.report.remedies import PAGES, REMEDIES

CORPUS = json.loads((ROOT / "chapters" / "pasted.json").read_text(encoding="utf-8"))
MESSAGE = "RuntimeError: Function 'AddmmBackward0' returned nan values in its 2th output."
SCALAR = "RuntimeError: grad can be implicitly created only for scalar outputs"
# A traceback quotes code, and code can hold another message.
TRACEBACK = f"""Traceback (most recent call last):
  File "/home/ada/secret_project/train.py", line 12, in <module>
    loss.backward()  # grad can be implicitly created only for scalar outputs
  File "torch/autograd/graph.py", line 829, in _engine_run_backward
    return Variable._execution_engine.run_backward(  # Calls into the C++ engine
{MESSAGE}
"""
CELL = f"""Cell In[3], line 4
    3     raise {SCALAR}
----> 4 y.sum().backward()

{MESSAGE}"""
LOG = "".join(f"2026-11-01 12:00:{step:05} INFO step {step} loss 0.{step} lr 1e-4\n" for step in range(2000))
# The same message, as terminals, systems and launchers print it.
SHAPES = {
    "alone": MESSAGE,
    "a traceback": TRACEBACK,
    "ends of lines of Windows": TRACEBACK.replace("\n", "\r\n"),
    "the number of the process": re.sub(r"^", "[rank0]: ", TRACEBACK, flags=re.MULTILINE),
    "the error of the launcher at the end": f"{TRACEBACK}torch.distributed.elastic.errors.ChildFailedError:\n=====\n",
    "a cell of a notebook": CELL,
    "a log of 100 kB around it": LOG + TRACEBACK + LOG,
    "an exception of C++": f"terminate called after throwing an instance of 'c10::Error'\n  what():  {MESSAGE[14:]}",
    "the first part of anomaly mode": "graph.py:824: UserWarning: Error detected in AddmmBackward0. Traceback of",
}
FOREIGN = TRACEBACK.replace(MESSAGE, "TypeError: forward() missing 1 argument").replace("loss", "torch.where(x, 1 / x)")


@pytest.fixture(scope="module")
def recognise(browser, site):
    """Recognise a text by the script and the list of the built site, in a page without an address."""
    with browser.new_context() as context:
        page = context.new_page()
        page.add_script_tag(path=site / "_static" / "message.js")
        page.add_script_tag(content=f"var list = {(site / 'messages.json').read_text(encoding='utf-8')}")
        yield lambda text: page.evaluate("text => recognised(list, text)", text)


def names(found):
    return [re.sub(r"chapters/(.+)\.html.*", r"\1", page["address"]) for page in found["pages"]]


# Whoever wrote down the pages that answer these texts did not know the list of messages. Each round was run once before
# anything was repaired. The first page was right, and one of three was right, for:
#
#     189 texts: 83 % and 92 %    60 texts: 77 % and 85 %     60 texts: 85 % and 92 %
#     40 texts: 65 % and 75 %     60 texts: 80 % and 93 %     60 texts: 77 % and 85 %
#     40 texts: 65 % and 92 %     60 texts: 85 % and 97 %     120 texts: 88 % and 97 %
#     60 texts: 82 % and 92 %     60 texts: 77 % and 93 %
#
# No wrong page opened. Until then, rules alone decided. With what is learned from the texts before them, the last 180
# texts gave 88 % and 97 %, but how much the learned part counts was chosen on them. Then 60 new texts gave 85 % and
# 97 %, where rules alone would have given 77 % and 95 %, and 160 more gave 85 % and 94 %. For a new text, expect these
# numbers, and not those of this test: the box has learned from these texts, and the rules were written with them.
@pytest.mark.parametrize(("kinds", "first"), [("short", 0.95), ("", 0.98)])
def test_known_texts_lead_to_a_page_that_answers_them(recognise, kinds, first):
    texts = [entry for entry in CORPUS if (entry["kind"] == "short") == bool(kinds)]
    right, among = [], []
    for entry in texts:
        found = recognise(entry["text"])
        pages = names(found)
        expected = [page in entry["expect"] for page in pages] or [not entry["expect"]]
        right.append(expected[0])
        among.append(any(expected))
        assert expected[0] or not found["opens"], entry["text"]
    assert len(texts) > 100 and sum(right) >= first * len(texts) and sum(among) >= 0.98 * len(texts)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_message_is_recognised_in_every_shape(recognise, shape):
    found = recognise(SHAPES[shape])
    assert found["pages"][0]["address"] == "chapters/returned-nan-values.html#node-AddmmBackward0"
    assert "backward-gradient-argument" not in names(found) and len(found["pages"]) <= 3 and not found["opens"]


@pytest.mark.parametrize(
    ("code", "page"), [("torch.where(x > 0, 1 / x, 0)", "where-over-division"), ("x[mask]", "division-under-a-mask")]
)
def test_lines_of_code_decide_between_the_pages_of_a_message(recognise, code, page):
    found = recognise(TRACEBACK.replace("AddmmBackward0", "DivBackward0").replace("loss.backward()", code))
    assert names(found)[0] == page and "#node-DivBackward0" in str(found["pages"])


def test_a_page_opens_only_if_the_last_error_is_its_message(recognise):
    assert recognise(SCALAR)["opens"] and recognise(TRACEBACK.replace(MESSAGE, SCALAR))["opens"]
    after = recognise(f"{SCALAR}\n\nDuring handling of the above exception, another occurred:\n\nKeyError: 'step'")
    assert names(after) == ["backward-gradient-argument"] and not after["opens"]


@pytest.mark.parametrize(
    "text",
    [
        "ModuleNotFoundError: No module named 'torch'",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
        FOREIGN,
        FOREIGN.replace("TypeError", "\x1b[0;31mTypeError\x1b[0m"),
        "which CTC decoder is the fastest",
        " \n\n x",
    ],
)
def test_what_the_book_does_not_know_gets_no_page(recognise, text):
    found = recognise(text)
    assert found["pages"] == [] and not found["opens"]


def test_the_page_of_a_report_of_explain_opens(recognise):
    for remedy in REMEDIES.values():
        page, _, anchor = remedy.section.partition("#")
        found = recognise(f"overflow: exp(100) > 3.4e38\n  train.py:8\n  {PAGES}{page}.html#{anchor}\n")
        assert found["opens"] and found["pages"][0]["address"] == f"chapters/{page}.html#{anchor}"
    several = recognise(f"2 origins\n  {PAGES}atlas.html#angles\n  {PAGES}undefined.html#what-to-do\n")
    assert names(several)[:2] == ["atlas", "undefined"] and not several["opens"]
    assert not recognise("https://example.org/chapters/no-such-page.html#why")["pages"]


def paste(tab, text):
    tab.page.get_by_label("Error message, traceback or log").fill(text)
    tab.page.get_by_role("button", name="Find the page about it").click()


def test_a_pasted_text_leaves_the_box_in_no_way(visit):
    visit.open("")
    address, asked = visit.page.url, []
    visit.page.on("request", lambda request: asked.append([request.url, request.post_data]))
    history = visit.page.evaluate("history.length")
    paste(visit, TRACEBACK)
    pages = visit.page.locator(".answer li")
    pages.first.wait_for()
    assert pages.count() == 3 and all(text.startswith("If ") for text in pages.locator("p").all_inner_texts())
    assert axe(visit, ROOT) == [] and [f"{visit.address}/messages.json", None] in asked
    assert "secret" not in str(asked) and "Addmm" not in str(asked)
    assert visit.page.url == address and visit.page.evaluate("history.length") == history
    kept = "[history.state, localStorage.length, sessionStorage.length, document.cookie]"
    assert visit.page.evaluate(kept) == [None, 0, 0, ""] and visit.troubles == []
    pages.first.locator("a").click()
    visit.page.wait_for_url("**/chapters/**")
    assert visit.page.evaluate("document.referrer") in ("", address)
    visit.page.evaluate("history.back()")
    visit.page.wait_for_url(address, wait_until="commit")
    assert visit.page.get_by_label("Error message, traceback or log").input_value() == TRACEBACK  # nothing is lost


def test_what_is_pasted_needs_no_click(visit):
    visit.open("")
    box = visit.page.get_by_label("Error message, traceback or log")
    box.evaluate(
        "(box, text) => { box.dispatchEvent(new Event('paste')); box.value = text; }", "GradScaler: the scale goes to 0"
    )
    visit.page.locator(".answer a").first.wait_for()


def test_an_exact_message_opens_its_page_and_back_leads_back(visit):
    visit.open("")
    address = visit.page.url
    paste(visit, SCALAR)
    visit.page.wait_for_url("**/chapters/backward-gradient-argument.html")
    visit.page.evaluate("history.back()")
    visit.page.wait_for_url(address, wait_until="commit")


def test_a_text_that_is_not_known_or_a_box_that_fails_leads_to_the_questions_or_the_table(visit, browser, address):
    visit.open("")
    paste(visit, "ModuleNotFoundError: No module named 'torch'")
    visit.page.locator(".answer", has_text="three questions below").wait_for()
    assert visit.page.locator(".answer a").count() == 0
    visit.page.route("**/messages.json", lambda route: route.fulfill(status=503))
    paste(visit, MESSAGE)
    visit.page.locator(".answer", has_text="could not be loaded (status 503)").wait_for()
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(address)
        page.get_by_label("Error message, traceback or log").fill(MESSAGE)
        page.get_by_role("button", name="Find the page about it").click()
        assert page.url == f"{address}/"
