"""The box for a pasted message: which pages it shows, which texts it does not know, and that nothing leaves it."""

import json
import re

import pytest
from scratch import ROOT

from tools.measure.browser import axe
from zero_or_nan.explain.report.remedies import PAGES, REMEDIES

CORPUS = json.loads((ROOT / "tests" / "site" / "pasted.json").read_text(encoding="utf-8"))
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


# Whoever wrote down the pages that answer these texts did not know the list of messages. The list was written with the
# half "work". When it was finished, it was run once on "held", then 189 texts: the first page was right for 83 %, one
# of three for 92 %, and no wrong page opened. Later it was run on new texts from public threads, mostly logs and
# questions, round after round. The first run of each round, before any repair, gave:
#
#     40 texts: 65 % and 75 %     60 texts: 77 % and 85 %     60 texts: 85 % and 92 %
#     40 texts: 65 % and 92 %     60 texts: 80 % and 93 %     60 texts: 77 % and 85 %
#     60 texts: 82 % and 92 %     60 texts: 85 % and 97 %     120 texts: 88 % and 97 %
#
# No wrong page opened. After each run, the mistakes were repaired, and the texts were rewritten and added to "work",
# but for those of the last three rounds.
# For a new text, expect what the first runs gave, and not the numbers of this test. During the last repairs, the list
# was run on five samples of unknown threads, 193 texts. The first page was right for 80 %, 76 %, 82 %, 82 % and 88 %,
# and one of three for 85 %, 82 %, 88 %, 94 % and 97 %: as before these repairs. A sample of 46 invented texts of the
# kinds that had failed rose from 50 % to 85 %. The person who chose the pages of these samples knew the list.
@pytest.mark.parametrize(("half", "first", "three"), [("work", 0.99, 0.99), ("held", 0.97, 0.99)])
def test_texts_from_public_threads_lead_to_a_page_that_answers_them(recognise, half, first, three):
    texts = [entry for entry in CORPUS if entry["half"] == half]
    right, among = [], []
    for entry in texts:
        found = recognise(entry["text"])
        pages = names(found)
        expected = [page in entry["expect"] for page in pages] or [not entry["expect"]]
        right.append(expected[0])
        among.append(any(expected))
        assert expected[0] or not found["opens"], entry["text"]
    assert len(texts) >= 75 and sum(right) >= first * len(texts) and sum(among) >= three * len(texts)


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


FILE = '  File "torch/cuda/amp/attention.py", line 7, in step\n'
FIRST = [
    # The file of a traceback may be one of a package. The quoted line, or the message at the end, may lack.
    (f"{FILE}ValueError: The loss returned in `training_step` is nan.", "find-it-in-your-model"),
    (f"{FILE}AssertionError: No inf checks were recorded for this optimizer.", "not-your-case"),
    (f'{FILE}    raise RuntimeError("One of the differentiated Tensors does not require grad")', "not-your-case"),
    (f'{FILE}    raise FloatingPointError(f"found nan at {{step}}")\n    ^^^^^^^^^^\n', "find-it-in-your-model"),
    (f'the gradient of iou\n{FILE}    raise FileNotFoundError("no such image")', None),
    # The finite numbers of a log and outdated names are no causes.
    ("Loss: nan (nan) mIoU: 0.41 (0.39) BCE: 0.31 (0.32) Time: 0.35 LR: 4.0e-04", "find-it-in-your-model"),
    ("recon: 0.43 ssim: 0.81 mae: 0.02 lr: 0.001 kl_loss: nan", "losses-and-geometry"),
    ("| entropy | 0.126 |\n| value_loss | nan |", "find-it-in-your-model"),
    ("FutureWarning: `torch.cuda.amp.autocast()` is deprecated.\nbatch 7, loss nan", "find-it-in-your-model"),
    ("INFO rank 1 joined, all_reduce begins", None),
    ("lr_scheduler=cosine, lora rank 16, loss nan", "find-it-in-your-model"),
    # What a log says of a norm, and of episodes.
    ("12 | loss: 9.44 | norm: nan\n13 | loss: 9.41 | norm: 2.1", "mixed-precision"),
    ("12 | loss: 9.44 | grad_norm: nan\n13 | loss: nan | grad_norm: nan", "loss-0-grad-norm-nan"),
    ("loss 1.2 (1.3) grad_norm 3.1 (inf)", "mixed-precision"),
    ("is it normal that grad_norm is inf?\nis grad_norm = nan normal?", "mixed-precision"),
    ("loss=0.69 grad_norm=0.0", "not-your-case"),
    ("| ep_rew_mean | nan |\n| value_loss | 12.4 |", None),
    # A loss that grew diverged. One that only varied did not, and one that is finite again lost no weights.
    ("train loss: 2.1\nval loss: 40.2\ntrain loss: 31.5\ntrain loss: nan", "divergence"),
    ("loss: 0.8\nloss: 0.05\nloss: 0.6\nloss: nan", "find-it-in-your-model"),
    ("train loss: 0.8\nval loss: 41.3\ntrain loss: nan\nval loss: nan", "find-it-in-your-model"),
    ("{'loss': nan, 'lr': 1e-05}\n{'loss': 0.41, 'lr': 1e-05}", "find-it-in-your-model"),
    ("{'loss': nan, 'lr': 1e-05}\n{'loss': 0.0, 'lr': 1e-05}", "loss-0-grad-norm-nan"),
    ("grad_norm: 90412.5 loss: 84.1\ngrad_norm: nan loss: nan", "divergence"),
    ("loss: nan, iou_loss: nan, focal: nan, cls: nan", "find-it-in-your-model"),
    ("step=10, skipped=7, lr=[0.001]", "mixed-precision"),
    ("{'loss': 0.0, 'grad_norm': 0.07, 'lr': 1e-05}", None),
    ("lr is always 0: {'loss': 1.9, 'grad_norm': 3.1, 'learning_rate': 0.0}", None),
    ("found inf or nan values in gradients! Setting gradients to zero.", "every-remedy"),
    # What was found out already decides before the names of functions.
    ("the gradients of my softmax mask are all 0.0", "not-your-case"),
    ("TransformerEncoder: nan in fp16, all is fine in fp32", "mixed-precision"),
    ("MultiheadAttention: gradients are right on the CPU, but nan on cuda", "only-on-a-gpu"),
    ("nan gradients with flash attention, none with the math kernel", "only-on-a-gpu"),
    ("which layer of my transformer makes the nan?", "find-it-in-your-model"),
    ("the loss fell, then it was nan, and so is model.attention", "find-it-in-your-model"),
    ("on the CPU of my laptop, as it has no cuda\nwith mps the loss is nan", "only-on-a-gpu"),
    ("nan loss, with this and with other methods", "find-it-in-your-model"),
    ("torch.masked_select(x, keep).log() is nan", "atlas"),
    ("assert net.scale.grad is not None", "not-your-case"),
    ("is topk differentiable? I need its gradient", "not-your-case"),
    ("the gradient does not flow to the router", "not-your-case"),
    ("tanh has no NaN, but ReLU has", "find-it-in-your-model"),
    ("skip_nan_grad=True, and then the wer is 1", "every-remedy"),
    ("the JS divergence is nan", "find-it-in-your-model"),
    ("--zero-infinity, and the wer is 100 %", None),
    ("the accuracy differs in spite of manual_seed", None),
    ("compiled, the layer norm gives nan, while it is finite in eager", "find-it-in-your-model"),
    ("torch.exp(logvar) with a variance: nan", "find-it-in-your-model"),
    ("多卡训练 loss nan", "one-poisoned-rank"),
    ("training hangs in backward, at all_reduce", None),
    ("how does gradient accumulation work with DDP?", None),
    ("the sum of the mask is 0, and the bce is nan", "undefined"),
    ("q = a / b\nq[1].backward()  # a.grad is nan", "division-under-a-mask"),
    ("loss nan with 4 gpus", "one-poisoned-rank"),
    # What a log says of healthy steps, of a table, and of a loss whose gradient is 0.
    ("[DP=0]: iteration: 3211 / 9000 | lm_loss: 2.4 | grad_norm: 0.9", None),
    ("iteration 900/ 5000 | lm loss: 2.4 | grad norm: 0.8 | number of nan iterations: 0", None),
    ("Epoch  box_loss  cls_loss  Mask(P\n  1/9       nan       nan      0.0", "find-it-in-your-model"),
    ("Mean entropy loss: 17.2\nMean amp_loss loss: nan\nMean kl loss: nan\nMean bce: nan", "find-it-in-your-model"),
    ("amp_loss: nan", "find-it-in-your-model"),
    ("Updating learning rate to 5e-05\nloss nan", "find-it-in-your-model"),
    ("train/loss:nan - train/grad_norm:0.0 - train/lr:1e-06", "undefined"),
    ("train loss: 0.8, val loss: nan after 12 epochs", "find-it-in-your-model"),
    ("print(w.grad)\n\ntensor([[0., -0.]], device='cuda:0')", "not-your-case"),
    ("tensor([nan], grad_fn=<SliceBackward0>)", "find-it-in-your-model"),
    ("RuntimeError: none of output has requires_grad=True, this checkpoint() is not necessary", "not-your-case"),
    # What people say: what did not help, what grew, and what is missing.
    ("nan at step 203, whichever learning rate I take", "find-it-in-your-model"),
    ("the loss is nan, and a smaller learning rate doesn't help", "find-it-in-your-model"),
    ("around 2200 the loss explodes, so I clip gradients", "divergence"),
    ("grad norm explodes at step 70 and the loss is 0", "divergence"),
    ("grad_norm特别大", "divergence"),
    ("nan with batch_size=2: is it the padding?", "attention"),
    ("nn.Conv2d(8, 8, 3, padding=1) gives nan", "find-it-in-your-model"),
    ("the background is zero, and the gradient nan", "find-it-in-your-model"),
    ("nan at a place where sqrt() has no slope", "undefined"),
    ("the loss may be nan, so we just skip such steps", "every-remedy"),
    ("GradScaler halves the scale until it is 0", "mixed-precision"),
    ("inf in the gradients, and the step is always skipped", "mixed-precision"),
    ("checkpointing makes loss.requires_grad be False", "not-your-case"),
    ("the gradient of torch.floor", "not-your-case"),
    ("the learning rate never changes", None),
    ("the loss is nan when the mask is empty", "undefined"),
    ("the angle between parallel vectors has a nan gradient", "undefined"),
    ("normalizing the advantages gives nan", "undefined"),
    ("my csv has nan in two columns", "two-penguins"),
    ("loss = (x / y)[y != 0].sum() is nan in spite of the mask", "division-under-a-mask"),
    ("is there something faster than detect_anomaly?", "find-it-in-your-model"),
    # A number that is 1 / eps is no divergence. The same data are no equal points.
    ("F.normalize, no nan, but max: 1.000e+12", "undefined"),
    ("the same data, and nan at another position in each run", "find-it-in-your-model"),
    # What any log says: a number that grew, a step that was left out, a norm, a scale, a loss of 0.
    ("epoch=4 nll=8.1\nepoch=5 nll=88.2\nepoch=6 nll=51320.7\nepoch=7 nll=nan", "divergence"),
    ("1, 0.7, 3.2\n2, 9.1, 3.0\n3, 970.5, 2.9\n4, nan, 2.8", "divergence"),
    ("loss 0.7\nloss 12.1\nloss 9841.2", "divergence"),
    ("loss_scale: 1.0\nloss_scale: 4.0\nloss_scale: 65536.0", None),
    ("WARNING gradient norm 31.2 exceeds the threshold 10.0, update skipped", "divergence"),
    ("(pid=4) WARN: grad_norm is not finite: nan\n(pid=7) WARN: grad_norm is not finite: nan", "find-it-in-your-model"),
    ("RuntimeError: gradient scale dropped below 1.0", "mixed-precision"),
    ("step 40: loss=0.0000 acc=0.97", "loss-0-grad-norm-nan"),
    ("{'loss': 812233.1, 'grad_norm': nan}\n{'loss': 0.0, 'grad_norm': nan}", "loss-0-grad-norm-nan"),
    ("nan params: blocks.0.norm.weight, embed.weight", "find-it-in-your-model"),
    ("numerical:\n 0.4011  0.0000\nanalytical:\n 0.4000  0.0000", "float-round-off"),
    # Questions in people's own words, with and without a NaN.
    ("during training my loss always shows me 0", "loss-0-grad-norm-nan"),
    ("for p in net.parameters(): print(p.grad)\n\nweight None\nbias None", "not-your-case"),
    ("I print the weights, and I do not see any change in them", "not-your-case"),
    ("conda does not update my environment", None),
    ("if the last layer is initialized as zeros, all gradients will also be zeros", "not-your-case"),
    ("the gradients of my network go to _inf_", "divergence"),
    ("cross entropy is nan, and a lower learning rate makes this happen later", "divergence"),
    ("the old version is ok, but now the loss gets nan at the 1st iteration", "find-it-in-your-model"),
    ("nan if the batch has more than 65535 rows", "find-it-in-your-model"),
    ("the validation loss of my phoneme model is inf", "losses-and-geometry"),
    ("my time series has some values missing", "two-penguins"),
    ("(w * x)[:2].sum().backward()  # w.grad is nan", "slicing-nan"),
    ("r = (lp - lp_old).exp()  # inf", "losses-and-geometry"),
    # What was found out comes before names of functions: a scaler, another dtype, one GPU, a number of steps.
    ("the scaler always overflows, and the LayerNorm gradients are nan", "mixed-precision"),
    ("nan with sdpa attention in bf16, the same script in fp32 trains normally", "mixed-precision"),
    ("one GPU is fine, 8 GPUs with bf16 give nan", "one-poisoned-rank"),
    ("NaN after 5K steps. Would gradient clipping be enough?", "divergence"),
    ("WARNING: distogram loss is NaN.\nWARNING: masked_msa loss is NaN.", "find-it-in-your-model"),
    ("keep = ~y.isnan()\nloss = F.huber_loss(x, y)[keep].sum()  # x.grad is nan", "two-penguins"),
    ("torch.clamp_min(x, 0.0).backward()  # 1.0, and relu has 0.0 at the same point", "six-spellings-of-max"),
    ("out.backward(torch.ones(2, 3))  # what does it mean?", "backward-gradient-argument"),
    ("a gradient penalty: why are the grad_outputs ones?", "backward-gradient-argument"),
]


@pytest.mark.parametrize(("text", "page"), FIRST)
def test_what_is_said_leads_to_its_page(recognise, text, page):
    assert [*names(recognise(text)), None][0] == page


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
    visit.page.go_back()
    assert visit.page.url == address


def test_an_exact_message_opens_its_page_and_back_leads_back(visit):
    visit.open("")
    address = visit.page.url
    paste(visit, SCALAR)
    visit.page.wait_for_url("**/chapters/backward-gradient-argument.html")
    visit.page.go_back()
    visit.page.wait_for_url(address)


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
