// The search page: every section that has words of the query, the best page first.
"use strict";

const FIELDS = { keywords: 3, page: 3, heading: 4, text: 1 };
// Words that error messages and questions are full of, and that tell no page from another.
const COMMON = new Set("a an and are at be by do does for from get how i in is it its my not of on or that the to was why with".split(" "));

const form = document.querySelector("form.search-page");
const found = document.getElementById("found");
const results = document.getElementById("results");
const query = new URLSearchParams(location.search).get("q") ?? "";
for (const field of document.querySelectorAll('input[name="q"]')) field.value = query;

function words(text) {
  return text.match(/[\p{L}\p{N}_]+/gu) ?? [];
}

function term(word) {
  const lower = word.toLowerCase();
  // A name such as torch.nanmean or ExpBackward0 stands whole; plurals and the like are cut short.
  return COMMON.has(lower) ? null : lower.replace(/(?<=[a-z]{4})(s|ed|ing)$/, "");
}

function snippet(text, terms) {
  const at = terms.map((each) => text.toLowerCase().indexOf(each)).filter((place) => place >= 0);
  const from = Math.max(0, Math.min(...(at.length ? at : [0])) - 60);
  const piece = text.slice(from, from + 180);
  const paragraph = document.createElement("p");
  const parts = terms.length ? piece.split(new RegExp(`(${terms.map((each) => each.replace(/\W/g, "\\$&")).join("|")})`, "i")) : [piece];
  if (from) paragraph.append("… ");
  parts.forEach((part, number) => {
    if (number % 2) {
      const mark = document.createElement("mark");
      mark.textContent = part;
      paragraph.append(mark);
    } else paragraph.append(part);
  });
  if (from + 180 < text.length) paragraph.append(" …");
  return paragraph;
}

function show(hits) {
  const pages = new Map();
  for (const hit of hits) pages.set(hit.page, [...(pages.get(hit.page) ?? []), hit]);
  found.textContent = pages.size
    ? `${pages.size} ${pages.size === 1 ? "page" : "pages"} for “${query}”`
    : `Nothing found for “${query}”. Fewer words may find more.`;
  for (const [page, sections] of pages) {
    const item = document.createElement("li");
    for (const [number, hit] of sections.slice(0, 3).entries()) {
      const link = document.createElement("a");
      // The best section opens the page at its top where that is the page's own title.
      link.href = number ? hit.address : sections[0].address;
      link.textContent = hit.heading === page ? page : number ? hit.heading : `${page}: ${hit.heading}`;
      if (number) {
        const line = document.createElement("p");
        line.append(link);
        item.append(line);
      } else {
        link.className = "hit";
        item.append(link, snippet(hit.text, hit.terms));
      }
    }
    results.append(item);
  }
}

async function search() {
  found.textContent = "Searching …";
  const answer = await fetch(`${document.documentElement.dataset.content_root}search.json`);
  if (!answer.ok) {
    found.textContent = `The index could not be loaded (${answer.status}). Reload the page to try again.`;
    return;
  }
  const index = new MiniSearch({
    fields: Object.keys(FIELDS),
    storeFields: ["address", "page", "heading", "text"],
    idField: "address",
    tokenize: words,
    processTerm: term,
    searchOptions: {
      boost: FIELDS,
      prefix: (each) => each.length > 3,
      fuzzy: (each) => (each.length > 5 ? 0.15 : 0),
      // A section whose heading is the word defines it.
      boostDocument: (_, each, stored) => (stored.heading.toLowerCase() === each ? 4 : 1),
    },
  });
  index.addAll(await answer.json());
  show(index.search(query));
}

if (query.trim()) search();
else form.querySelector("input").focus();
