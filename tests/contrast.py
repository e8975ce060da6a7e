"""Text of a page in a web browser whose contrast is below that of WCAG 2.1 AA (success criterion 1.4.3)."""

from __future__ import annotations

from typing import Any

# Backgrounds and the text's color are painted over each other, so that any notation and transparency counts.
_LOW = """() => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const luminance = (color, alpha) => {
    context.globalAlpha = alpha;
    context.fillStyle = color;
    context.fillRect(0, 0, 1, 1);
    const [red, green, blue] = [...context.getImageData(0, 0, 1, 1).data].map((value) =>
      value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4,
    );
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const low = new Set();
  for (const element of document.querySelectorAll("body *")) {
    const texts = [...element.childNodes].filter((node) => node.nodeType === 3 && node.data.trim());
    if (!texts.length || !element.checkVisibility() || element.closest("svg, option, .skip")) continue;
    const styles = [];
    for (let at = element; at; at = at.parentElement) styles.unshift(getComputedStyle(at));
    const opacity = styles.reduce((product, style) => product * style.opacity, 1);
    if (!opacity) continue;
    let behind = luminance("white", 1);
    for (const style of styles) behind = luminance(style.backgroundColor, 1);
    const { color, fontSize, fontWeight } = styles.at(-1);
    const text = luminance(color, opacity);
    const ratio = (Math.max(text, behind) + 0.05) / (Math.min(text, behind) + 0.05);
    const size = parseFloat(fontSize);
    const least = size >= 24 || (size >= 18.66 && fontWeight >= 700) ? 3 : 4.5;
    if (ratio < least) low.add(`${element.tagName} ${element.className} ${ratio.toFixed(2)}: ${texts[0].data.trim().slice(0, 40)}`);
  }
  return [...low];
}"""


def low_contrast(page: Any) -> list[str]:
    """The elements with such text, each with its contrast."""
    found: list[str] = page.evaluate(_LOW)
    return found
