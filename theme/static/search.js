// The search page: the results of find.js, the words of the query that no page has, and advice if no page is about the query.
"use strict";

// The most lines of a pasted text that are searched.
const TRIED = 20;
const found = document.getElementById("found");
const results = document.getElementById("results");
const asked = new URLSearchParams(location.search);
// The lines of a pasted text that may say what went wrong. The page shows the first of them as the query.
const said = telling(asked.get("q") ?? "");
const query = said[0] ?? "";
for (const field of document.querySelectorAll('input[name="q"]')) field.value = query;

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

function link(section, text) {
  const made = element("a", text);
  made.href = section.address;
  return made;
}

function listed(words) {
  const quoted = words.map((word) => `“${word}”`);
  return quoted.length > 1 ? `${quoted.slice(0, -1).join(", ")} or ${quoted.at(-1)}` : quoted[0];
}

// The positions of the found terms in a section's text, and the position after which most of them occur.
function places(section) {
  const text = section.text || section.rows;
  const terms = [...section.terms.keys()].sort((one, other) => other.length - one.length);
  const pattern = terms.map((term) => `(?<![\\p{L}\\p{N}])${term.replace(/[.+]/g, "\\$&").replace("/", "\\s*/\\s*").replace("×", "\\s*[×*]\\s*")}[\\p{L}\\p{N}]*`).join("|");
  const marks = [...text.matchAll(new RegExp(pattern, "giu"))]
    .map((match) => ({ from: match.index, to: match.index + match[0].length, term: stem(joined(match[0])) }))
    .filter((mark) => section.terms.has(mark.term));
  const after = (mark) => new Set(marks.filter((other) => other.from >= mark.from && other.to <= mark.from + 150).map((other) => other.term));
  let [best, most] = [0, 0];
  for (const mark of marks) {
    const weight = sum([...after(mark)].map((term) => section.terms.get(term)));
    if (weight > most) [best, most] = [mark.from, weight];
  }
  return { text, marks, best, most };
}

function snippet({ text, marks, best }) {
  const from = best < 60 ? 0 : text.lastIndexOf(" ", best - 30) + 1;
  const end = text.indexOf(" ", from + 190);
  const to = end < 0 ? text.length : end;
  const paragraph = element("p", from ? "… " : "");
  let at = from;
  for (const mark of marks.filter((mark) => mark.from >= from && mark.to <= to)) {
    paragraph.append(text.slice(at, mark.from), element("mark", text.slice(mark.from, mark.to)));
    at = mark.to;
  }
  paragraph.append(text.slice(at, to), to < text.length ? " …" : "");
  return paragraph;
}

function item({ page, sections, lacks }) {
  const [best, ...others] = sections;
  const [title, thread] = page.split(/ (?=· [^·]+$)/);
  const head = link(best, title);
  head.className = "hit";
  if (thread) head.append(" ", marked("span", "thread", thread));
  if (best.heading !== page) head.append(marked("span", "place", best.heading));
  // If a page was found by its title or keywords, show the section with the best excerpt.
  const shown = (best.heading === page ? sections : [best]).map(places);
  const made = element("li", head, snippet(shown.reduce((one, other) => (other.most > one.most ? other : one))));
  const also = others.filter((section) => section.share > best.share / 2 && section.heading !== page).slice(0, 2);
  if (also.length) made.append(element("p", "Also: ", ...also.flatMap((section, number) => [number ? ", " : "", link(section, section.heading)])));
  if (lacks.length) made.append(element("p", `Without ${listed(lacks.map((word) => word.unit))}.`));
  return made;
}

function show(book, { words, pages, about }) {
  const said = [about ? `${pages.length} ${pages.length === 1 ? "page" : "pages"} for “${query}”.` : `No page of this book is about “${query}”.`];
  const unknown = words.filter((word) => !word.terms.length).map((word) => word.unit);
  if (unknown.length && words.length > 1) said.push(`No page has ${listed(unknown)}.`);
  for (const word of words) if (pages.length && word.instead) said.push(`“${word.unit}” is on no page, ${listed(book.shown(word))} is.`);
  if (!about && pages.length) said.push("What comes closest:");
  found.textContent = said.join(" ");
  results.append(...pages.map(item));
  if (!about) {
    const report = document.querySelector("#none a.report");
    const address = new URL(report.href);
    address.searchParams.set("title", `No page about ${query.slice(0, 200)}`);
    address.searchParams.set("body", `I searched the book for this:\n\n> ${query.slice(0, 1000)}\n\nThe shortest code that shows it:\n\n\`\`\`python\n\n\`\`\`\n`);
    report.href = address;
    document.getElementById("none").hidden = false;
  }
}

async function fetched() {
  const answer = await fetch(`${document.documentElement.dataset.content_root}search.json`);
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  return answer.json();
}

async function search() {
  found.textContent = "Searching …";
  let records;
  try {
    records = await fetched();
  } catch (error) {
    found.textContent =
      location.protocol === "file:"
        ? "A browser can't search pages that are opened as files. Run “make serve” in the checkout, and open the address that it prints."
        : `The search index could not be loaded (${error.message}). Check the connection, and reload the page to try again.`;
    return;
  }
  const book = new Book(records);
  // A reader who pasted a message on the first page needs the page about it, not a list. Back leads to the first page. If no
  // page is about a line, such as the message of a launcher around the error, another line is tried.
  const lines = asked.has("open") ? said.slice(0, TRIED) : [];
  const whole = ({ about }) => about;
  const part = ({ about, words }) => about && words.every(({ hits }) => hits.length);
  const first = (texts, good) => texts.map((text) => book.find(text)).find(good);
  const answer = first(lines, whole) ?? first(lines.flatMap(readings), part);
  if (answer) location.replace(answer.pages[0].sections[0].address);
  else show(book, book.find(query));
}

if (query) search();
else document.querySelector("form.search-page input").focus();
