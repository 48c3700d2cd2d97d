// This script runs before the page is drawn. Otherwise the page would appear for a moment in other colors than the reader
// chose, or with the answers that the reader should predict.
"use strict";

let teaches = new URLSearchParams(location.search).has("teach");
try {
  const theme = localStorage.getItem("theme");
  if (theme) document.documentElement.dataset.theme = theme;
  if (teaches) localStorage.setItem("teach", "on");
  teaches ||= localStorage.getItem("teach") === "on";
} catch {
  // Without storage, the page uses the system's colors.
}
document.documentElement.classList.toggle("teach", teaches);
document.documentElement.classList.add("js");
