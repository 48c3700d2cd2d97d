// Runs before the page is drawn: a page in the colors that the reader chose does not flash in others first, nor an answer
// that is to be predicted.
"use strict";

let teaches = new URLSearchParams(location.search).has("teach");
try {
  const theme = localStorage.getItem("theme");
  if (theme) document.documentElement.dataset.theme = theme;
  if (teaches) localStorage.setItem("teach", "on");
  teaches ||= localStorage.getItem("teach") === "on";
} catch {
  // Without storage the page follows the system's colors.
}
document.documentElement.classList.toggle("teach", teaches);
document.documentElement.classList.add("js");
