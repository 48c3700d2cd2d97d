// The box for a message on the first page: the pages that chapters/messages.toml names for it. A pasted text can have
// names and paths in it, so it is never sent, and never written to an address, the history or a storage.
"use strict";

// A line that names an error and says something about it.
const ERROR = /(?<![\w.'"])(?:[\p{L}_]\w*\.)*[\p{L}_]\w*(?:Error|Exception)(?:\(\w+\))?: \S.*/gu;
// What a traceback quotes: the indented line after the name of a file. In a notebook, with an arrow, the numbered lines.
const QUOTED = /^\W*File ".*", line \d+.*(\n[ \t]+.*)?$/gm;
const PATHS = /^\W*File ".*", line \d+/gm;
// A warning about a name that a release renamed.
const OUTDATED = /^.*(?:Future|Deprecation)Warning: .*$/gm;
const ARROW = /^-+> *\d+ /m;
const NUMBERED = /^(-+>)? *\d+ .*$/gm;
// The end of a traceback that was cut before its message: the line that raises the error.
const RAISED = /\n[ \t]+raise ([\w.]+)\([rf]*["'](.*)(?:\n[ \t]+[\^~]+)?\s*$/;
// Words before a name, if a line begins with them: "Mean surrogate loss: 0.12".
const WORDS = String.raw`(?:^[ \t]*(?:[a-z_][\w/]* ){1,3})?`;
// What makes a text one about a NaN, for rules that ask.
const NAN = /(?<!zero.)\b(?:nan|inf|infinity)s?\b/i;
// Names with finite numbers. If a line has many, or is the row of a table, it is a log, and the name is no cause. This
// also holds if many other names are not finite.
const FINITE = String.raw`['"]?(?: *[:=|] *| +)-?(?=[\d.]*[1-9])\d+\.\d[\w.+-]*(?: \([\d.]+\))?`;
const PAIR = new RegExp(String.raw`(?<![\w.])${WORDS}[a-z_][\w/.]*${FINITE}`, "gim");
const PAIRS = 4;
// Names with a number that is not finite, except the two that every log has. If a text has many, each may follow from
// another, and no name is the cause.
const OTHER = String.raw`['"]? *[:=|] *(?:tensor\()?(?:nan|inf)\b(?: \(\w+\))?`;
const BAD = new RegExp(String.raw`(?<![\w.])(?!loss\b|grad_?norm\b)(${WORDS}[a-z_][\w/.]*)${OTHER}`, "gim");
const NAMES = 3;
// A loss grew if its last number before a NaN or an infinity is so many times the median.
const GROWTH = 10;
const LOSS = /(?:loss|cost|norm)(?!.?scale|al|er)/i;
// The row of a table that has only numbers.
const NUMBERS = /^[ \t|]*(?:nan|inf|\d[\d.]*(?:e[+-]?\d+)?)(?:[ \t,;|]+(?:nan|-?inf|-?\d[\d.]*(?:e[+-]?\d+)?))+[ \t|]*$/gim;
const TABLE = /^\W*\|.*\|\s*$/;
// The line of a table without bars, which has many fields: it says what was measured, and no cause.
const COLUMNS = /^(?!.*[a-z_]['"]? ?[:=] ?(?:nan|inf|\d))[ \t]*(?:\S+(?: \S+)*(?: {2,}|\t)){3}.*$/gim;
// The name of a parameter, such as blocks.0.norm.weight.
const PARAMETERS = /(?<![\w.])(?:\w+\.)+(?:weight|bias)\b(?!\.|\()/gi;
// A counter of a log that has counted no NaN.
const COUNTED = /\b(?:number of )?nan[ _](?:iterations|steps|batches|count)['"]? *[:=] *0\b/gi;
const CANDIDATES = 3;
// How much the first places in the order of the rules count, how much a page that is learned to be certain, and which sum
// a page needs that no rule names.
const PLACES = [1, 0.55, 0.4];
const LEARNED = 2;
const ENOUGH = 0.3;

// A word that somebody emphasized: the loss is _nan_, the gradient is **zero**.
const EMPHASIZED = /(?<!\w)[_*]{1,2}(nan|inf|none|zero|0)[_*]{1,2}(?!\w)/gi;

// Remove the colours of a terminal, the number of the process before a line, and emphasis.
function plain(text) {
  const lines = text.replace(/\u001b\[[\d;?]*[A-Za-z]/g, "").replace(/\r\n?/g, "\n");
  return lines.replace(/^\[[\w:]*rank ?\d+\]:? ?/gim, "").replace(COUNTED, "").replace(EMPHASIZED, "$1");
}

/** What may say a cause: without names of files, outdated names, tables, and what a log says of finite numbers. */
function causes(text) {
  const names = new Set([...text.matchAll(BAD)].map(([, name]) => name));
  const kept = names.size < NAMES ? text : text.replace(BAD, "");
  const code = [PATHS, OUTDATED, COLUMNS, PARAMETERS].reduce((left, no) => left.replace(no, ""), kept);
  const logged = (line) => names.size >= NAMES || TABLE.test(line) || line.match(PAIR)?.length >= PAIRS;
  return code.replace(/^.*$/gm, (line) => (logged(line) ? line.replace(PAIR, "") : line));
}

/** Whether a number that a log has under one name, or in one column, grew before it was NaN or infinite. */
function grew(text, name) {
  const runs = new Map();
  const add = (key, value) => {
    if (!runs.has(key)) runs.set(key, []);
    runs.get(key).push(Math.abs(parseFloat(value)));
  };
  const number = String.raw`['"]? *[:=|]? *(?:tensor\()?(-?(?:nan|inf|\d[\d.]*(?:e[+-]?\d+)?))`;
  for (const [, key, value] of text.matchAll(new RegExp(String.raw`(?<![\w.])(${name})${number}`, "gi"))) add(key, value);
  for (const [row] of text.matchAll(NUMBERS)) row.match(/[^\s,;|]+/g).forEach((value, column) => add(column, value));
  return [...runs].some(([key, run]) => {
    const end = run.findIndex(Number.isNaN);
    const finite = end < 0 ? run : run.slice(0, end);
    const median = [...finite].sort((a, b) => a - b)[(finite.length - 1) >> 1];
    const last = finite.at(-1);
    // Healthy numbers grow, too, such as a count, but they stay finite. A loss that is still finite must be huge.
    const factor = end >= 0 && LOSS.test(key) ? GROWTH : GROWTH ** 2;
    return finite.length > 1 && last > factor * median && (end >= 0 || (LOSS.test(key) && last > factor));
  });
}

const path = ({ address }) => address.split("#")[0];

/** The pages that a report of explain links to, in their order. */
function linked(text, pages) {
  const links = [...text.matchAll(/\/chapters\/([\w-]+)\.html(#[\w-]+)?/g)].filter(([, name]) => name in pages);
  return links.map(([, name, anchor = ""]) => ({ ...pages[name], address: pages[name].address + anchor }));
}

/** The rules that fit a text, in their order, each with its pages. A node in an address is the node in the text. */
function fitting({ symptom, rules, pages }, text, said) {
  const about = new RegExp(symptom, "i").test(text);
  const bad = NAN.test(text);
  const code = causes(text);
  return rules.flatMap((rule) => {
    const hint = rule.kind === "hint";
    const found = () => new RegExp(rule.pattern, "i").exec(hint ? code : said);
    const asked = (rule.nan ?? bad) === bad && (!hint || about || rule.symptom);
    const fits = asked && (rule.kind === "grows" ? grew(said, rule.pattern) : found());
    const named = (field) => field.replace("{node}", fits.groups?.node);
    const made = ({ address, heading, ...page }) => ({ ...page, address: named(address), heading: named(heading) });
    return fits ? [{ ...rule, pages: rule.pages.map((name) => made(pages[name])) }] : [];
  });
}

/** How probable it is that each page answers a text, by the words of other texts. The page "" stands for none. */
function learned({ pages, bias, terms }, text) {
  const words = text.toLowerCase().match(/[a-z]+/g) ?? [];
  const pairs = words.slice(1).map((word, at) => `${words[at]} ${word}`);
  const found = [...new Set([...words, ...pairs])].filter((term) => Object.hasOwn(terms, term));
  const scores = [...bias];
  for (const term of found) for (const [at, weight] of terms[term]) scores[at] += weight / Math.sqrt(found.length);
  return new Map(pages.map((name, at) => [name, 1 / (1 + Math.exp(-scores[at]))]));
}

/** The pages of the rules, and those that are learned, in the order of both. There are none if "none" is the first. */
function weighed({ pages, learned: known }, found, text) {
  const scores = new Map([...found.keys()].slice(0, CANDIDATES).map((key, place) => [key, PLACES[place]]));
  if (!found.size) scores.set("", PLACES[0]);
  const whole = new Map();
  for (const [name, chance] of learned(known, text)) {
    const key = name && path(pages[name]);
    whole.set(key, pages[name]);
    scores.set(key, (scores.get(key) ?? 0) + LEARNED * chance);
  }
  const order = [...scores].filter(([key, score]) => found.has(key) || score >= ENOUGH).sort((one, other) => other[1] - one[1]);
  if (order[0][0] === "") return [];
  return order.filter(([key]) => key).map(([key]) => found.get(key) ?? whole.get(key));
}

/**
 * Recognise a pasted text. The result has three fields:
 *
 * pages: at most three pages, the best first, each with the sentence that says when it is the right one. There are none
 *   if the text, or the last error in it, is not in the list: pages for what is near the error would be a guess.
 * opens: whether the text is a message that has one page, so that the page can open by itself.
 * kind: the kind of the rule that decided.
 *
 * A query of the search is shorter than the texts of which the order of the pages is learned. For it, the rules alone decide.
 */
function recognised(list, pasted, isQuery = false) {
  const text = plain(pasted);
  const whole = text.replace(RAISED, "\n$1: $2");
  const said = (ARROW.test(whole) ? whole.replace(NUMBERED, "") : whole).replace(QUOTED, "");
  const error = said.match(ERROR)?.at(-1);
  const reported = linked(text, list.pages);
  const [first, ...others] = fitting(list, text, said);
  const known = first?.pages.length && (!error || [first, ...others].some(({ kind }) => kind !== "hint"));
  const own = known ? first.pages : [];
  const rest = known ? [...own.slice(1), ...others.flatMap((rule) => rule.pages)] : [];
  const hinting = known ? others.filter(({ kind }) => kind === "hint") : [];
  const hints = hinting.flatMap((rule) => rule.pages);
  // Code and words decide between the pages of a message. The further pages of a hint are too weak for this.
  const same = ({ pages: [hint] }) => own.filter((page) => path(page) === path(hint));
  const decided = first?.kind === "hint" ? [] : hinting.flatMap(same);
  const best = new Map();
  for (const page of [...reported, ...decided, ...own.slice(0, 1), ...hints, ...rest]) {
    // Of two places on one page, the section says more.
    if (!best.get(path(page))?.address.includes("#")) best.set(path(page), page);
  }
  const exact = first?.opens && new RegExp(first.pattern, "i").test(error ?? said);
  const opens = reported.length ? new Set(reported.map(path)).size === 1 : Boolean(exact);
  // Of an error that no rule knows, the words near it say nothing.
  const isDecided = reported.length || (error && !known) || ["message", "node"].includes(first?.kind);
  const pages = isDecided || isQuery ? [...best.values()] : weighed(list, best, text);
  return { pages: pages.slice(0, CANDIDATES), opens, kind: first?.kind };
}

function element(name, ...content) {
  const made = document.createElement(name);
  made.append(...content);
  return made;
}

function marked(name, kind, text) {
  const made = element(name, text);
  made.className = kind;
  return made;
}

/** A link to a section: the title of its page with the number of the thread, and the section's own heading. */
function hit({ address, page, heading }) {
  const [title, thread] = page.split(/ (?=· [^·]+$)/);
  const made = marked("a", "hit", title);
  made.href = document.documentElement.dataset.content_root + address;
  if (thread) made.append(" ", marked("span", "thread", thread));
  if (heading !== page) made.append(marked("span", "place", heading));
  return made;
}

function candidate(page) {
  const parts = page.if.split("`").map((part, number) => (number % 2 ? element("code", part) : part));
  return element("li", hit(page), element("p", ...parts));
}

async function fetched(name) {
  const answer = await fetch(document.documentElement.dataset.content_root + name);
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  return answer.json();
}

async function answer(text, place) {
  const { pages, opens } = recognised(await fetched("messages.json"), text);
  if (opens) return location.assign(hit(pages[0]).href);
  const unknown = "This book does not know this text. The three questions below lead to a page.";
  const said = pages.length ? "Open the page whose condition is true for you:" : unknown;
  place.replaceChildren(element("p", said), element("ol", ...pages.map(candidate)));
}

// Who pastes a text wants its page. The text is in the box only after the event.
document.querySelector("form.paste textarea")?.addEventListener("paste", ({ target }) => {
  setTimeout(() => target.form.requestSubmit());
});

document.querySelector("form.paste")?.addEventListener("submit", ({ target }) => {
  const place = document.querySelector(".answer");
  answer(target.querySelector("textarea").value, place).catch((error) => {
    const instead = "The table below leads from what you see to a page.";
    place.textContent = `The list of messages could not be loaded (${error.message}). ${instead}`;
  });
});
