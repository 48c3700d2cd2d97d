// Runs before the page is drawn: a page in the colors that the reader chose does not flash in others first.
"use strict";

try {
  const theme = localStorage.getItem("theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch {
  // Without storage the page follows the system's colors.
}
document.documentElement.classList.add("js");
