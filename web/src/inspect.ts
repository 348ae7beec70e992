// `window.flodl.inspect()`: what the page shows, to read only; for tests and for the curious.

const charts = new Set<() => object>();
let page: () => object = () => ({});

/** A chart's own description while it is on the page; returns how to forget it. */
export function remember(chart: () => object): () => void {
  charts.add(chart);
  return () => charts.delete(chart);
}

export function expose(describe: () => object): void {
  page = describe;
  const inspect = () => structuredClone({ ...page(), charts: [...charts].map((chart) => chart()) });
  Object.defineProperty(window, "flodl", { value: Object.freeze({ inspect }), configurable: false });
}
