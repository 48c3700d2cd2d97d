// The definition of a word of the glossary, where a page uses the word. Without this script, the definition is the title of
// the link, which only a mouse shows. Here a mouse, the focus or a tap shows it, and Escape hides it.
"use strict";

const definition = Object.assign(document.createElement("p"), { className: "definition", popover: "manual", role: "tooltip" });
document.querySelector("main").append(definition);
let defined = null;
let leaving;

// Directly above the line of the word, or below it if there is no room, so that a pointer can move into the definition.
function beside() {
  const word = defined.getClientRects()[0];
  const { width, height } = definition.getBoundingClientRect();
  const above = word.top - height;
  definition.style.left = `${Math.max(8, Math.min(word.left, document.documentElement.clientWidth - width - 8))}px`;
  definition.style.top = `${above > document.querySelector("header.top").offsetHeight ? above : word.bottom}px`;
}

function define(link) {
  clearTimeout(leaving);
  if (defined === link) return;
  defined = link;
  definition.textContent = link.ariaDescription;
  definition.showPopover();
  beside();
}

function hide() {
  defined = null;
  definition.hidePopover();
}

function leave({ pointerType }) {
  if (pointerType === "mouse") leaving = setTimeout(() => defined !== document.activeElement && hide(), 200);
}

for (const link of document.querySelectorAll("a.term")) {
  let isFirstTap = false;
  link.ariaDescription = link.title;
  link.removeAttribute("title");
  link.addEventListener("pointerenter", ({ pointerType }) => pointerType === "mouse" && define(link));
  link.addEventListener("pointerleave", leave);
  link.addEventListener("focus", () => define(link));
  link.addEventListener("blur", () => defined === link && hide());
  // The first tap shows the definition, and the second follows the link.
  link.addEventListener("pointerdown", ({ pointerType }) => (isFirstTap = pointerType !== "mouse" && defined !== link));
  link.addEventListener("click", (event) => {
    if (!isFirstTap) return;
    isFirstTap = false;
    event.preventDefault();
    define(link);
  });
}

definition.addEventListener("pointerenter", () => clearTimeout(leaving));
definition.addEventListener("pointerleave", leave);
document.addEventListener("pointerdown", ({ target }) => defined && ![defined, definition].includes(target.closest("a, p")) && hide());
document.addEventListener("keydown", ({ key }) => key === "Escape" && defined && hide());
addEventListener("scroll", () => defined && beside(), { passive: true });
addEventListener("resize", () => defined && beside());
