// What the theme leaves out: the name of the search, and tables that can be scrolled by keyboard.
document.querySelector('.md-search[role="dialog"]')?.setAttribute("aria-label", "Search");
addEventListener("load", () => {
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) table.tabIndex = 0;
});
