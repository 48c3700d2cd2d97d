// What both the search page and the box in the header find, and the titles that a search box suggests while a reader types:
// a combobox with a list, as WAI-ARIA's practices describe it. site.js loads this file when a reader enters the box.
"use strict";

// The longest query. Of a longer text, such as a traceback, the last error is searched.
const LONGEST = 300;
const SENTENCE = 3;
const SUGGESTIONS = 5;

/** What to search for in a text: the text, or the last error of a long one. */
function question(text) {
  const asked = plain(text).trim();
  return asked.length < LONGEST ? asked : (asked.match(ERROR)?.at(-1) ?? asked).slice(0, LONGEST);
}

let loading;

async function load() {
  const [records, list] = await Promise.all(["search.json", "messages.json"].map(fetched));
  const book = new Book(records);
  await book.ready;
  return { book, list };
}

/** The index and the list of messages, loaded once. After a failure, the next call tries again. */
function loaded() {
  loading ??= load();
  loading.catch(() => (loading = undefined));
  return loading;
}

/**
 * What the index finds, after what the list of messages knows. Of single words, of nodes, and of words that no rule names,
 * the index knows more, but not of an error.
 */
function answered(book, list, query) {
  const found = book.find(query);
  const { pages, kind } = query.split(/\s+/).length < SENTENCE ? { pages: [] } : recognised(list, query, true);
  const isWeak = kind === "node" || (kind === "other" && !query.match(ERROR));
  const advice = isWeak ? [] : pages;
  const others = found.pages.filter(({ page }) => !advice.some((other) => other.page === page));
  const foreign = kind === "message" && !pages.length; // the list says that this book does not explain the error
  return { ...found, advice, pages: others, about: !foreign && (found.about || advice.length > 0) };
}

/** The best section of each of the first pages; none if no page is about the query. */
function suggested({ book, list }, query) {
  const { about, advice, pages } = answered(book, list, query);
  return about ? [...advice, ...pages.map((page) => page.sections[0])].slice(0, SUGGESTIONS) : [];
}

function combobox(field) {
  const options = element("ul");
  Object.assign(options, { id: "suggestions", hidden: true, role: "listbox", ariaLabel: "Pages" });
  field.form.append(options);
  Object.assign(field, { role: "combobox", ariaAutoComplete: "list", ariaExpanded: "false", autocomplete: "off" });
  field.setAttribute("aria-controls", options.id);

  function choose(option) {
    for (const each of options.children) each.ariaSelected = String(each === option);
    if (option) field.setAttribute("aria-activedescendant", option.id);
    else field.removeAttribute("aria-activedescendant");
  }

  function show(isShown) {
    options.hidden = !(isShown && options.children.length);
    field.ariaExpanded = String(!options.hidden);
    choose(null);
  }

  function option(section, number) {
    const link = hit(section);
    const made = element("li", ...link.childNodes);
    Object.assign(made, { id: `suggestion-${number}`, role: "option" });
    made.addEventListener("click", () => location.assign(link.href));
    return made;
  }

  let asked = ""; // what the search page answers already: a suggestion that comes late would cover the answer

  async function suggest() {
    const text = field.value;
    const query = question(text);
    const found = query.length > 1 ? suggested(await loaded(), query) : [];
    if (field.value !== text || text === asked || document.activeElement !== field) return; // the reader went on
    options.replaceChildren(...found.map(option));
    show(true);
  }

  const offer = () => suggest().catch(() => show(false)); // the search page says what failed
  field.addEventListener("input", offer);
  field.addEventListener("blur", () => show(false));
  field.form.addEventListener("submit", () => {
    asked = field.value;
    show(false);
  });
  options.addEventListener("pointerdown", (event) => event.preventDefault()); // the focus stays in the box
  field.addEventListener("keydown", (event) => {
    const all = [...options.children];
    const chosen = all.find((each) => each.ariaSelected === "true");
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && all.length) {
      show(true);
      // After the last suggestion, and before the first, is the box itself.
      const next = (all.indexOf(chosen) + 1 + step + all.length + 1) % (all.length + 1);
      choose(all[next - 1]);
    } else if (event.key === "Enter" && chosen) chosen.click();
    else if (event.key === "Escape" && !options.hidden) {
      event.stopPropagation(); // the next Escape leaves the box
      show(false);
    } else return;
    event.preventDefault();
  });
  if (field.value) offer();
}

combobox(document.querySelector("form[role=search] input"));
