// What is wrong with how a page lies on a screen or on paper: texts that overlap or are cut, tables that
// are wider than their place without a sign, words that are broken, SVG that leaves its frame.
(paper) => {
  const found = new Set();
  const brief = (text) => text.trim().replace(/\s+/g, " ").slice(0, 40);
  const visible = (element) => element.checkVisibility({ contentVisibilityAuto: true, opacityProperty: true, visibilityProperty: true });
  const boxes = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || element.closest("script, noscript, style, option, #tip") || !visible(element)) continue;
    range.selectNodeContents(node);
    const rects = [...range.getClientRects()].filter(({ width, height }) => width > 0.5 && height > 0.5);
    if (!rects.length) continue;
    for (const rect of rects) {
      boxes.push({ node, element, rect, sticky: element.closest(".bar, #panel") });
      // Cut by something around it.
      for (let around = element; around && around !== document.documentElement; around = around.parentElement) {
        const svg = around.tagName.toLowerCase() === "svg";
        const { overflowX, textOverflow } = getComputedStyle(around);
        if (svg || !/^visible$/.test(overflowX)) {
          const clip = around.getBoundingClientRect();
          const over = Math.max(rect.right - clip.right, clip.left - rect.left);
          const signed = getComputedStyle(around).backgroundImage.includes("gradient") || textOverflow === "ellipsis";
          if (over > 1.5 && !(signed && !svg && !paper)) found.add(`cut by ${over.toFixed(0)} px: ${brief(node.data)}`);
          if (svg && Math.max(rect.bottom - clip.bottom, clip.top - rect.top) > 1.5) found.add(`cut above or below: ${brief(node.data)}`);
          break;
        }
      }
      if (rect.right > innerWidth + 1.5 && !element.closest(".wide, pre, #panel")) found.add(`leaves the page: ${brief(node.data)}`);
    }
    // Broken inside a word.
    if (!element.closest("pre, svg")) {
      for (const { index, 0: word } of node.data.matchAll(/[\p{L}\p{N}_]+/gu)) {
        range.setStart(node, index);
        range.setEnd(node, index + word.length);
        if (new Set([...range.getClientRects()].map(({ top }) => Math.round(top))).size > 1) found.add(`broken: ${word}`);
      }
    }
  }
  // Overlapping: boxes sorted by where they begin, each against those that begin before it ends.
  boxes.sort((a, b) => a.rect.top - b.rect.top);
  boxes.forEach((a, i) => {
    for (let j = i + 1; j < boxes.length && boxes[j].rect.top < a.rect.bottom; j++) {
      const b = boxes[j];
      if (a.node === b.node || a.sticky || b.sticky) continue;
      const wide = Math.min(a.rect.right, b.rect.right) - Math.max(a.rect.left, b.rect.left);
      const high = Math.min(a.rect.bottom, b.rect.bottom) - b.rect.top;
      const clips = (box) => box.element.closest(".wide")?.getBoundingClientRect().right ?? Infinity;
      if (Math.max(a.rect.left, b.rect.left) > Math.min(clips(a), clips(b))) continue;
      if (wide > 3 && high > 4) found.add(`overlap: ${brief(a.node.data)} / ${brief(b.node.data)}`);
    }
  });
  for (const wide of document.querySelectorAll(".wide")) {
    if (!visible(wide)) continue;
    const over = wide.scrollWidth - wide.clientWidth;
    const style = getComputedStyle(wide);
    if (over > 1 && (paper || !style.backgroundImage.includes("gradient"))) found.add(`table cut by ${over} px without a sign: ${brief(wide.textContent)}`);
    if (paper && wide.getBoundingClientRect().left + wide.scrollWidth > innerWidth + 1) found.add(`table beyond the paper: ${brief(wide.textContent)}`);
  }
  if (document.documentElement.scrollWidth > innerWidth) found.add(`the page is ${document.documentElement.scrollWidth} px wide`);
  return [...found];
}
