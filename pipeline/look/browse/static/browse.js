// Keyboard shortcuts. Without this script every page works by links and forms.
"use strict";
const links = { n: 'a[rel="next"]', p: 'a[rel="prev"]', u: 'a[rel="up"]', t: "#tokens" };

function move(step) {
  const rows = [...document.querySelectorAll(".rows tbody tr a:first-of-type")].filter(
    (link) => link.closest("td").cellIndex === 0,
  );
  if (!rows.length) return;
  const at = rows.indexOf(document.activeElement);
  rows[Math.min(Math.max(at + step, 0), rows.length - 1)].focus();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey && event.key === "Enter" && event.target.matches("textarea"))
    event.target.form.requestSubmit();
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const search = document.getElementById("search");
  if (event.key === "/" && search) {
    event.preventDefault();
    search.focus();
  } else if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (links[event.key]) document.querySelector(links[event.key])?.click();
});
