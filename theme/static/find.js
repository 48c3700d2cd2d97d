// Which pages have to do with a query, the one that has most to do with it first. Nothing on the page is touched here.
"use strict";

const FIELDS = { keywords: 5, page: 3, title: 4, rows: 2, text: 1, parts: 1 };
// A page is shown when it says this much of what the best one says, and the best one when it says this much of the query.
const SHOWN = 0.6;
const WORTH = 0.25;
// It is about the query when it names this much of it; of pages that only mention it, a few are shown.
const ABOUT = 0.5;
// Where no page has some words of a query, the others have to tell this much: gradient and nan alone tell nothing.
const TELLING = 1;
// Of a page, a row is shown before the page itself when it says nearly as much.
const ROW = 1.5;
const MOST = { about: 8, mention: 3 };
// Words that error messages and questions are full of, and that tell no page from another.
const COMMON = new Set(
  "a all an and are at be but by can do does for from get how i if in is it its my not of on only or out that the there this to was what when why with".split(" "),
);

// A short division or product, a number, a name with the names that it lies in, or a word.
const UNIT = /(?<![\w./])(?:[a-z]|\d+)\s*[/×*]\s*(?:[a-z]|\d+|inf)(?![\w./])|\d+(?:\.\d+)*(?:e[+-]?\d+)?(?!\w)|[\p{L}\p{N}_]+(?:\.[\p{L}_][\p{L}\p{N}_]*)*/giu;
const HUMP = /\p{Lu}+(?!\p{Ll})|\p{Lu}?\p{Ll}+/gu;

function units(text) {
  const found = text.replace(/https?:\/\/[^\s/]+/g, " ").match(UNIT) ?? [];
  return found.map(joined);
}

// A division or a product is written in one way, whatever its spaces and its sign.
function joined(unit) {
  return unit.replace(/\s/g, "").replace("*", "×");
}

// A name of code is right or wrong as it stands; a word has an ending, and may be misspelt.
function isName(unit) {
  return /[\d_./]|\p{Ll}\p{Lu}/u.test(unit);
}

// The name of a node in the graph, as error messages have it: ExpBackward0, and MyFunctionBackward of a class of the user's.
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

// Of torch.nan_to_num these are nan_to_num, nan and num; of ExpBackward0 they are Exp and Backward.
function parts(name) {
  const pieces = name.split(/[._]/).flatMap((piece) => [piece, ...(isName(piece) ? (piece.match(HUMP) ?? []) : [])]);
  return [last(name), ...pieces].filter((piece) => piece.length > 2 && piece !== name);
}

// What may stand for a name that is nowhere: the operator of a node in the graph, log_softmax for LogSoftmaxBackward0; or
// a part of it, the longest first.
function inside(name) {
  const operator = last(name).replace(/Backward\d+$/, "");
  const all = [operator.match(HUMP)?.join("_") ?? "", ...parts(operator).sort((one, other) => other.length - one.length)];
  return operator === name ? all.slice(1) : [...all, operator];
}

// Whether a section names what was found in it, and does not just have it in passing.
function names(hit) {
  const fields = Object.values(hit.match).flat();
  return Boolean(hit.own) || hit.address.endsWith("#at-a-glance") || fields.some((field) => field !== "text" && field !== "parts");
}

function sum(numbers) {
  return numbers.reduce((one, other) => one + other, 0);
}

class Book {
  constructor(records) {
    this.terms = new Map(); // each with a word that it stands for
    // What is found by its name alone, and only where no page is about that name: the list of all nodes.
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
        bm25: { k: 0.4, b: 0.5, d: 0.5 }, // how often a section repeats a word says little
        tokenize: (term) => [term],
        // A section whose heading is the word defines it.
        boostDocument: (_, term, { heading }) => (stem(heading) === term ? 4 : 1),
      },
    });
    // A heading that every chapter has tells no page from another.
    const often = new Map();
    for (const { heading } of records) often.set(heading, (often.get(heading) ?? 0) + 1);
    const fields = (record) => ({
      ...record,
      title: often.get(record.heading) > 2 ? "" : record.heading,
      parts: [record.keywords, record.heading, record.rows, record.text].join(" "),
    });
    this.index.addAll(records.map(fields));
    this.size = new Set(records.map((record) => record.page)).size;
  }

  // Names as they are, and without those that they lie in, x/0 in words too; what else names are put together from is a field
  // of its own.
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
   * Look for a query.
   *
   * words: those of the query, each with the terms that it was taken for; none where no page has anything like it, and
   *   instead where they are others than itself.
   * pages: those that have to do with it, the best first, each with its sections, the best first, and the words that it lacks.
   * about: whether one of them is about the query, and does not just mention it.
   */
  find(query) {
    const asked = new Map(units(query).map((unit) => [stem(unit), unit]));
    const words = [...asked.values()].filter((unit) => unit.length > 1 && !COMMON.has(unit.toLowerCase())).map((unit) => this.word(unit));
    const known = words.filter((word) => word.hits.length);
    const total = sum(known.map((word) => word.weight));
    // What stands or falls together: a row of its own, or else all of a page but such rows.
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
      // A row says itself what its page leads to.
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

  // The name of a node: what pages are about, by their keywords and headings, before the list of all nodes. A name that is
  // not in the list is a class of the user's own, or is of another PyTorch: the recipe is about those.
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

  // The fewer pages have or name a word the more it tells; most tells one that none has.
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

  // The words that a word was taken for, as pages have them.
  shown(word) {
    return word.terms.slice(0, 3).map((term) => this.terms.get(term));
  }

  // The terms that a word of a query stands for: its own, or else those that begin like it, are parts of it, or nearly it.
  meant(unit) {
    const whole = stem(unit);
    const those = (wanted) => [...this.terms.keys()].filter(wanted);
    const near = (wrong) => [...new Set(this.index.search(whole, { fuzzy: wrong }).flatMap((hit) => hit.terms))].filter((term) => !/\d/.test(term));
    const ways = [() => ({ terms: those((term) => term === whole) })];
    if (unit.includes(".")) ways.push(() => ({ terms: those((term) => term === stem(last(unit))) }));
    if (unit.includes("/")) ways.push(() => ({ terms: those((term) => term.endsWith(whole.slice(whole.indexOf("/")))), instead: true }));
    if (whole.length > 3) ways.push(() => ({ terms: those((term) => term.startsWith(whole)) }));
    if (isName(unit)) ways.push(...inside(unit).map((part) => () => ({ terms: those((term) => term === stem(part)), instead: true, loose: true })));
    else if (unit.length > 5) ways.push(...(whole.length > 8 ? [1, 2] : [1]).map((wrong) => () => ({ terms: near(wrong), instead: true })));
    for (const way of ways) {
      const found = way();
      if (found.terms.length) return found;
    }
    return { terms: [] };
  }
}
