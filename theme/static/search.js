// The search page: the results of find.js, the words of the query that no page has, and advice if no page is about the query.
"use strict";

const found = document.getElementById("found");
const results = document.getElementById("results");

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
  // If a page was found by its title or keywords, show the section with the best excerpt.
  const shown = (best.heading === page ? sections : [best]).map(places);
  const made = element("li", hit(best), snippet(shown.reduce((one, other) => (other.most > one.most ? other : one))));
  const also = others.filter((section) => section.share > best.share / 2 && section.heading !== page).slice(0, 2);
  if (also.length) made.append(element("p", "Also: ", ...also.flatMap((section, number) => [number ? ", " : "", link(section, section.heading)])));
  if (lacks.length) made.append(element("p", `Without ${listed(lacks.map((word) => word.unit))}.`));
  return made;
}

function show(book, query, { words, pages, about, advice }) {
  const count = advice.length + pages.length;
  const said = [about ? `${count} ${count === 1 ? "page" : "pages"} for “${query}”.` : `No page of this book is about “${query}”.`];
  const unknown = words.filter((word) => !word.terms.length).map((word) => word.unit);
  if (unknown.length && words.length > 1) said.push(`No page has ${listed(unknown)}.`);
  for (const word of words) if (pages.length && word.instead) said.push(`“${word.unit}” is on no page, ${listed(book.shown(word))} is.`);
  if (!about && pages.length) said.push("What comes closest:");
  found.textContent = said.join(" ");
  results.replaceChildren(...advice.map(candidate), ...pages.map(item));
  document.getElementById("none").hidden = about;
  if (!about) {
    const report = document.querySelector("#none a.report");
    const address = new URL(report.href);
    address.searchParams.set("title", `No page about ${query.slice(0, 200)}`);
    address.searchParams.set("body", `I searched the book for this:\n\n> ${query.slice(0, 1000)}\n\nThe shortest code that shows it:\n\n\`\`\`python\n\n\`\`\`\n`);
    report.href = address;
  }
}

async function search(query) {
  found.textContent = "Searching …";
  try {
    const { book, list } = await loaded();
    show(book, query, answered(book, list, query));
  } catch (error) {
    found.textContent =
      location.protocol === "file:"
        ? "A browser can't search pages that are opened as files. Run “make serve” in the checkout, and open the address that it prints."
        : `The search index could not be loaded (${error.message}). Check the connection, and search again.`;
  }
}

// The query stays in the browser. An address with a query, which somebody shared, is searched too.
const form = document.querySelector("form.search-page");
const field = form.querySelector("input");
form.addEventListener("submit", () => {
  field.value = question(field.value);
  if (field.value) search(field.value);
});
field.value = handedOver() ?? new URLSearchParams(location.search).get("q") ?? "";
if (field.value) form.requestSubmit();
else field.focus();
