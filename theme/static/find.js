// Finds the pages that match a query, the best page first. This file does not change the page that is shown.
"use strict";

const FIELDS = { keywords: 5, page: 3, title: 4, rows: 2, text: 1, parts: 1 };
// A page is shown if its share of the query is at least SHOWN times the best page's share. The best page must have a share of WORTH.
const SHOWN = 0.6;
const WORTH = 0.25;
// A page is about the query if it names at least this share of the query's words. If no page is, a few pages that mention them are shown.
const ABOUT = 0.5;
// If no page has some words of a query, the other words must have at least this weight. Gradient and nan alone have less.
const TELLING = 1;
// A row is shown before its page if the row matches nearly as well.
const ROW = 1.5;
const MOST = { about: 8, mention: 3 };
// Words that are common in error messages and questions, and therefore distinguish no pages.
const COMMON = new Set(
  "a all an and are at be but by can do does for from get how i if in is it its my not of on only or out that the there this to was what when why with".split(" "),
);

// A short division or product, a number, a name with its module or class, or a word.
const UNIT = /(?<![\w./])(?:[a-z]|\d+)\s*[/×*]\s*(?:[a-z]|\d+|inf)(?![\w./])|\d+(?:\.\d+)*(?:e[+-]?\d+)?(?!\w)|[\p{L}\p{N}_]+(?:\.[\p{L}_][\p{L}\p{N}_]*)*/giu;
const FRACTION = /^\d+(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+)$/i;
const HUMP = /\p{Lu}+(?!\p{Ll})|\p{Lu}?\p{Ll}+/gu;

function units(text) {
  const found = text.replace(/https?:\/\/[^\s/]+/g, " ").match(UNIT) ?? [];
  return found.map(joined);
}

// Give a division or a product the same form, with any spaces and any sign of multiplication.
function joined(unit) {
  return unit.replace(/\s/g, "").replace("*", "×");
}

// A name in code must match exactly. A word has endings, and may be misspelt.
function isName(unit) {
  return /[\d_./]|\p{Ll}\p{Lu}/u.test(unit);
}

// The name of a node in error messages: ExpBackward0, or MyFunctionBackward for a class of the user.
function isNode(unit) {
  return /[\p{L}\d]Backwards?(?:Autograd\p{L}+)?\d*(?:_copy)?$/iu.test(unit);
}

function stem(unit) {
  const lower = unit.toLowerCase();
  if (isName(unit)) return lower;
  return lower.replace(/ision$/, "id").replace(/(?<=[a-z]{2}[^s])s$/, "").replace(/(?<=[a-z]{3})(ing|ed|e)$/, "");
}

function last(name) {
  return name.slice(name.lastIndexOf(".") + 1);
}

// The parts of a name: for torch.nan_to_num they are nan_to_num, nan and num; for ExpBackward0 they are Exp and Backward.
function parts(name) {
  const pieces = name.split(/[._]/).flatMap((piece) => [piece, ...(isName(piece) ? (piece.match(HUMP) ?? []) : [])]);
  return [last(name), ...pieces].filter((piece) => piece.length > 2 && piece !== name);
}

// What to search for if no page has a name: the operator of a node, such as log_softmax for LogSoftmaxBackward0, or a part
// of the name, the longest part first.
function inside(name) {
  const operator = last(name).replace(/Backward\d+$/, "");
  const all = [operator.match(HUMP)?.join("_") ?? "", ...parts(operator).sort((one, other) => other.length - one.length)];
  return operator === name ? all.slice(1) : [...all, operator];
}

// Whether a section is about a match: a marked row, At a glance, or a match outside the section's text.
function names(hit) {
  const fields = Object.values(hit.match).flat();
  return Boolean(hit.own) || hit.address.endsWith("#at-a-glance") || fields.some((field) => field !== "text" && field !== "parts");
}

function sum(numbers) {
  return numbers.reduce((one, other) => one + other, 0);
}

class Book {
  constructor(records) {
    this.terms = new Map(); // each term with a word that it was made from
    // The list of all nodes. Only its exact name finds such a record, and only if no page is about that name.
    this.fallbacks = new Map();
    for (const record of records) if (record.fallback) this.fallbacks.set(stem(record.heading), record);
    records = records.filter((record) => !record.fallback);
    this.index = new MiniSearch({
      fields: Object.keys(FIELDS),
      storeFields: ["address", "page", "heading", "own", "rows", "text"],
      idField: "address",
      tokenize: (text, field) => this.indexed(text, field),
      processTerm: (term) => term,
      searchOptions: {
        boost: FIELDS,
        bm25: { k: 0.4, b: 0.5, d: 0.5 }, // low, because the number of repetitions of a word in a section says little
        tokenize: (term) => [term],
        // If the heading of a section is the word, the section defines the word.
        boostDocument: (_, term, { heading }) => (stem(heading) === term ? 4 : 1),
      },
    });
    // A heading that many chapters have does not distinguish pages.
    const often = new Map();
    for (const { heading } of records) often.set(heading, (often.get(heading) ?? 0) + 1);
    const fields = (record) => ({
      ...record,
      title: often.get(record.heading) > 2 ? "" : record.heading,
      parts: [record.keywords, record.heading, record.rows, record.text].join(" "),
    });
    // Wait for `ready` before `find`. A phone needs a second, so the index is made in parts, between which the page responds.
    this.ready = this.index.addAllAsync(records.map(fields), { chunkSize: 4 });
    this.size = new Set(records.map((record) => record.page)).size;
  }

  // The terms of a text: a name with and without its module, the factors of a product, and x/0 also in words. The other parts
  // of names are in a separate field.
  indexed(text, field) {
    const all = units(text).flatMap((unit) => {
      if (field === "parts") return isName(unit) ? parts(unit) : [];
      if (unit.includes(".")) return [unit, last(unit)];
      if (unit.includes("×")) return [unit, ...unit.split("×")];
      return unit.endsWith("/0") ? [unit, "division", "zero"] : [unit];
    });
    for (const unit of all) if (!this.terms.has(stem(unit))) this.terms.set(stem(unit), unit);
    return all.map(stem);
  }

  /**
   * Search for a query. The result has these fields:
   *
   * words: the words of the query, each with its terms: the terms that were searched for it. It has no terms if no page has a
   *   similar word. Its field instead is true if the terms differ from the word.
   * pages: the pages that match, the best first. Each has its sections, the best first, and the words that it lacks.
   * about: whether a page is about the query, and does not only mention it.
   */
  find(query) {
    const asked = new Map(units(query).map((unit) => [stem(unit), unit]));
    const words = [...asked.values()].filter((unit) => unit.length > 1 && !COMMON.has(unit.toLowerCase())).map((unit) => this.word(unit));
    const known = words.filter((word) => word.hits.length);
    const total = sum(known.map((word) => word.weight));
    // The units that are ranked: a marked row, or all of a page except its marked rows.
    const wholes = new Map();
    for (const word of known) {
      for (const hit of word.hits) {
        const key = hit.own ? hit.address : hit.page;
        if (!wholes.has(key)) wholes.set(key, { page: hit.page, sections: new Map(), says: new Map(), named: new Set() });
        const whole = wholes.get(key);
        const share = hit.score / word.most;
        const section = whole.sections.get(hit.address) ?? { ...hit, share: 0, terms: new Map() };
        section.share += word.weight * share;
        for (const term of hit.terms) section.terms.set(term, word.weight);
        whole.sections.set(hit.address, section);
        whole.says.set(word, Math.max(whole.says.get(word) ?? 0, share));
        if (names(hit) && !word.loose) whole.named.add(word);
      }
    }
    const pages = new Map();
    for (const { page, sections, says, named } of wholes.values()) {
      const about = sum([...named].map((word) => word.weight)) / total;
      const said = sum([...says].map(([word, share]) => word.weight * Math.sqrt(share))) / total;
      const best = [...sections.values()].sort((one, other) => other.share - one.share);
      const whole = { share: (said * (1 + about)) / 2, about, says, sections: best };
      pages.set(page, [...(pages.get(page) ?? []), whole]);
    }
    const found = [...pages].map(([page, parts]) => {
      const { share, about } = parts.reduce((one, other) => (other.share > one.share ? other : one));
      // A row answers more directly than its page.
      const lead = (part) => part.share * (part.sections[0].own ? ROW : 1);
      parts.sort((one, other) => lead(other) - lead(one));
      const lacks = known.filter((word) => !parts.some((part) => part.says.has(word)));
      return { page, share, about, lacks, sections: parts.flatMap((part) => part.sections) };
    });
    found.sort((one, other) => other.share - one.share);
    const best = found[0]?.share ?? 0;
    const told = known.length === words.length || total >= TELLING;
    const shown = best < WORTH || !told ? [] : found.filter((page) => page.share >= SHOWN * best);
    const about = 2 * known.length >= words.length && shown.some((page) => page.about >= ABOUT);
    return { words, pages: shown.slice(0, about ? MOST.about : MOST.mention), about };
  }

  word(unit) {
    return (isNode(unit) && this.node(unit)) || this.among(unit, this.meant(unit));
  }

  // The name of a node. Pages with the name in a keyword or heading come before the list of all nodes. A name that is not in
  // the list belongs to a class of the user or to another PyTorch. The page with the recipe is about such names.
  node(unit) {
    const whole = stem(unit);
    const meant = this.meant(unit);
    if (meant.terms.length && !meant.loose) {
      const word = this.among(unit, meant);
      if (word.hits.some(names)) return word;
    }
    const row = this.fallbacks.get(whole) ?? this.fallbacks.get(`${whole}0`);
    if (row) {
      const hit = { ...row, own: row.heading, score: 1, match: {}, terms: [stem(row.heading)] };
      return { unit, terms: hit.terms, instead: false, loose: false, hits: [hit], weight: this.weight(1), most: 1 };
    }
    const recipe = /\d/.test(unit.slice(-1)) ? "xbackward0" : "myfunctionbackward";
    return this.terms.has(recipe) ? this.among(unit, { terms: [recipe], instead: true }) : null;
  }

  // The weight of a word is larger if fewer pages have or name it. A word that no page has is weighted as if one page had it.
  weight(having) {
    return (0.1 + Math.log((2 * this.size) / (having || 2))) ** 2;
  }

  among(unit, { terms, instead = false, loose = false }) {
    const sections = new Map();
    for (const hit of terms.flatMap((term) => this.index.search(term))) {
      if (hit.score > (sections.get(hit.address)?.score ?? 0)) sections.set(hit.address, hit);
    }
    const hits = [...sections.values()];
    const having = new Set(hits.map((hit) => hit.page)).size + new Set(hits.filter(names).map((hit) => hit.page)).size;
    return { unit, terms, instead, loose, hits, weight: this.weight(loose ? 2 : having), most: Math.max(...hits.map((hit) => hit.score)) };
  }

  // The words on the pages for the terms of a query's word.
  shown(word) {
    return word.terms.slice(0, 3).map((term) => this.terms.get(term));
  }

  // The numbers on the pages that are the same number, as far as both are written: 5.96e-8 is 5.9605e-08. A whole number, such as
  // the number of a thread, must be equal.
  equal(unit) {
    const digits = (number) => number.replace(/e.*|\D/gi, "").replace(/^0+/, "").length;
    const same = (term) => {
      const places = Math.min(digits(unit), digits(term));
      return places > 2 && Number(term).toPrecision(places) === Number(unit).toPrecision(places);
    };
    return [...this.terms.keys()].filter((term) => FRACTION.test(term) && same(term));
  }

  // The terms to search for a word of a query: the word itself, or else terms that begin with it, are parts of it, or are similar.
  meant(unit) {
    const whole = stem(unit);
    const those = (wanted) => [...this.terms.keys()].filter(wanted);
    const near = (wrong) => [...new Set(this.index.search(whole, { fuzzy: wrong }).flatMap((hit) => hit.terms))].filter((term) => !/\d/.test(term));
    const ways = [() => ({ terms: those((term) => term === whole) })];
    if (FRACTION.test(unit)) ways.push(() => ({ terms: this.equal(unit) }));
    else if (unit.includes(".")) ways.push(() => ({ terms: those((term) => term === stem(last(unit))) }));
    if (unit.includes("/")) ways.push(() => ({ terms: those((term) => term.endsWith(whole.slice(whole.indexOf("/")))), instead: true }));
    if (whole.length > 3) ways.push(() => ({ terms: those((term) => term.startsWith(whole)) }));
    if (FRACTION.test(unit)) ways.push(() => ({ terms: [] })); // another number is no slip
    else if (isName(unit)) ways.push(...inside(unit).map((part) => () => ({ terms: those((term) => term === stem(part)), instead: true, loose: true })));
    else if (unit.length > 5) ways.push(...(whole.length > 8 ? [1, 2] : [1]).map((wrong) => () => ({ terms: near(wrong), instead: true })));
    for (const way of ways) {
      const found = way();
      if (found.terms.length) return found;
    }
    return { terms: [] };
  }
}
