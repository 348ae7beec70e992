// Drawing in the time that a frame leaves: many charts at once would hold up the page.
const BUDGET_MS = 8;

const waiting = new Map<object, () => void>();
let asked = 0;

/** Draws in one of the next frames; of several for the same `owner`, the last. */
export function drawSoon(owner: object, draw: () => void): void {
  waiting.set(owner, draw);
  if (asked === 0) asked = requestAnimationFrame(frame);
}

export function forget(owner: object): void {
  waiting.delete(owner);
}

function frame(): void {
  asked = 0;
  const until = performance.now() + BUDGET_MS;
  for (const [owner, draw] of waiting) {
    waiting.delete(owner); // whoever asks again is the last in the row
    draw();
    if (performance.now() > until) break;
  }
  if (waiting.size > 0) asked = requestAnimationFrame(frame);
}
