// The functions of every page: the colour scheme, copying code, a key for the search, and a report that names the place.
"use strict";

const root = document.documentElement;

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function remembered(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

function remember(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // Without storage, the choice is valid only on this page.
  }
}

const toggle = document.querySelector("button.theme");
toggle.setAttribute("aria-pressed", isDark());
toggle.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  toggle.setAttribute("aria-pressed", isDark());
  remember("theme", root.dataset.theme);
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && location.hash === "#contents") {
    location.hash = "main";
    document.querySelector("a.menu").focus();
  }
});

// The cells that check the page are hidden until a reader shows them, or follows a link to a claim.
const checked = document.querySelector("button.checked");

function showClaims(shown) {
  root.classList.toggle("claims", shown);
  checked?.setAttribute("aria-pressed", shown);
}

if (checked) checked.hidden = false;
checked?.addEventListener("click", () => {
  showClaims(!root.classList.contains("claims"));
  if (root.classList.contains("claims")) document.querySelector(".cell.tag_hide-cell:not(.tag_solution)")?.scrollIntoView({ block: "center" });
});

// A link to each claim. The build adds none, because it compares the outputs with those that were executed.
for (const claim of document.querySelectorAll(".zn-stated[id]")) {
  const link = Object.assign(document.createElement("a"), { className: "headerlink", href: `#${claim.id}`, textContent: "#" });
  link.ariaLabel = "Link to this result";
  claim.firstElementChild.append(link);
}

// The element that the address names. This does not use :target, because a browser sets it later.
function target() {
  try {
    return document.getElementById(decodeURIComponent(location.hash.slice(1)));
  } catch {
    return null; // the address is malformed, so it is no address of this site
  }
}

// A link may lead into a folded part, such as a claim. Not every browser unfolds it by itself.
function unfold() {
  const place = target();
  const folded = place?.closest("details");
  const isHidden = folded?.closest(".tag_hide-cell") && !root.classList.contains("claims");
  if (!folded || (folded.open && !isHidden)) return;
  if (isHidden) showClaims(true);
  folded.open = true;
  place.scrollIntoView();
}

unfold();
addEventListener("hashchange", unfold);

// "/" moves the focus to the search, and Escape moves it back. A key without Ctrl needs a switch, which is on the search page.
const box = document.querySelector("form[role=search] input");
const choice = document.querySelector("#slash input");
let slash = remembered("slash") !== "off";
let before = null;

function offer() {
  root.classList.toggle("slash", slash);
  if (slash) box.setAttribute("aria-keyshortcuts", "/");
  else box.removeAttribute("aria-keyshortcuts");
}

offer();
if (choice) {
  document.getElementById("slash").hidden = false;
  choice.checked = slash;
  choice.addEventListener("change", () => {
    slash = choice.checked;
    remember("slash", slash ? "on" : "off");
    offer();
  });
}

function isTyping(place) {
  return place.matches("input:not([type=checkbox], [type=range]), textarea, select") || place.isContentEditable;
}

document.addEventListener("keydown", (event) => {
  if (event.key === "/" && slash && !event.ctrlKey && !event.metaKey && !event.altKey && !isTyping(event.target)) {
    event.preventDefault();
    if (box.checkVisibility()) {
      before = document.activeElement;
      box.select();
    } else box.form.requestSubmit(); // if the box has no room here, open the search page
  } else if (event.key === "Escape" && event.target === box) {
    event.preventDefault(); // otherwise Escape would empty the box
    box.blur();
    before?.focus();
    before = null;
  }
});

// The search page gets the text of the box from here, and removes it from the tab's storage: a text can have names and
// paths in it, so it is never in an address or the history.
box.form.addEventListener("submit", (event) => {
  if (!box.form.matches("header *")) return;
  event.preventDefault();
  try {
    sessionStorage.setItem("query", box.value);
  } catch {
    // Without storage, the search page opens with an empty box.
  }
  location.assign(box.form.action);
});

function handedOver() {
  try {
    const query = sessionStorage.getItem("query");
    sessionStorage.removeItem("query");
    return query;
  } catch {
    return null;
  }
}

// A reader who enters the box gets suggestions. No page loads what they need before.
const own = document.currentScript.src;
box.addEventListener(
  "focus",
  () => {
    for (const name of ["vendor/minisearch.js", "find.js", "message.js", "suggest.js"]) {
      if (document.querySelector(`script[src*="/${name}"]`)) continue;
      const script = Object.assign(document.createElement("script"), { src: own.replace("site.js", name), async: false });
      document.head.append(script);
    }
  },
  { once: true },
);

// Add the place that the address names to the link of the report, shortly before the reader follows the link.
const report = document.querySelector("a.report[data-page]");
const whole = report?.href;

function place() {
  const target = document.querySelector("article :target");
  const address = new URL(whole);
  if (target) {
    const named = target.querySelector(":scope > :is(h1, h2, h3, h4, p)") ?? target;
    const words = (target.dataset.heading ?? named.textContent.replace(/#\s*$/, "")).trim().split(/\s+/).join(" ");
    const { page } = report.dataset;
    const there = `\n${page}${location.hash}\n> ${words.slice(0, 160)}\n\n`;
    address.searchParams.set("body", address.searchParams.get("body").replace(`\n${page}\n`, () => there));
  }
  report.href = address;
}

if (report) {
  for (const kind of ["pointerenter", "focus"]) report.addEventListener(kind, place);
  addEventListener("hashchange", place);
}

// Where code has no room, a line continues further to the right than it begins, so that it doesn't look like two lines.
const isNarrow = matchMedia("(max-width: 40rem)");

function hang() {
  if (!isNarrow.matches) return;
  isNarrow.removeEventListener("change", hang);
  for (const pre of document.querySelectorAll(".cell_input pre, div[class*=highlight-] pre")) {
    const lines = pre.innerHTML.split(/(?<=\n)/); // Pygments ends every tag in its line
    const begins = pre.textContent.split(/(?<=\n)/).map((line) => line.search(/\S|$/));
    pre.innerHTML = lines.map((line, at) => `<span class="line" style="--begin: ${begins[at]}ch">${line}</span>`).join("");
  }
}

isNarrow.addEventListener("change", hang);
hang();

// The text to copy from a block. From a session at a prompt, only the commands are copied.
function copied(pre) {
  if (!pre.querySelector(".gp")) return pre.textContent;
  const commands = pre.cloneNode(true);
  for (const part of commands.querySelectorAll(".gp, .go")) part.remove();
  return commands.textContent.replace(/\n{2,}/g, "\n").trim() + "\n";
}

for (const block of document.querySelectorAll("article .highlight")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.setAttribute("aria-label", "Copy this code");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(copied(block.querySelector("pre")));
      button.textContent = "Copied";
    } catch {
      // Copying is not allowed here, for example at an insecure address. Select the text, so that the reader can copy it.
      getSelection().selectAllChildren(block.querySelector("pre"));
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  block.append(button);
}

// A box that scrolls must be reachable by keyboard. Other boxes need not be.
for (const box of document.querySelectorAll("article pre")) {
  if (box.scrollWidth > box.clientWidth) {
    box.tabIndex = 0;
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", "code that scrolls sideways");
  }
}

// Mark the section that the reader reads in the list of sections: the last section whose heading is in the upper third or above.
const sections = [...document.querySelectorAll(".sections a")].map((link) => ({ link, place: document.getElementById(decodeURIComponent(link.hash.slice(1))) }));

function mark() {
  const read = sections.findLast(({ place }) => place && place.getBoundingClientRect().top < innerHeight / 3);
  for (const { link } of sections) link.removeAttribute("aria-current");
  read?.link.setAttribute("aria-current", "true");
}

if (sections.length) {
  mark();
  addEventListener("scroll", () => requestAnimationFrame(mark), { passive: true });
}

// Scroll the contents so that the current page is visible, unless the list of its sections is above them.
const contents = document.getElementById("contents");
const current = contents?.querySelector("[aria-current]");
if (current && !contents.querySelector(".here")?.checkVisibility()) contents.scrollTop = current.offsetTop - contents.offsetTop - contents.clientHeight / 2;
